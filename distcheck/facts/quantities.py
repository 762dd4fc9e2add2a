"""Formats quantities and other numbers: 2 nodes, 0.6 s, 16 MiB, SIGTERM."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable

_HISSING = ("s", "x", "ch", "sh")
_UNITS = (30, "GiB"), (20, "MiB"), (10, "KiB")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 rank, 2 ranks, 2 processes."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith(_HISSING) else 's'}"


def tally(names: Iterable[str]) -> str:
    """Return how often each name occurs, by name: 2 x NVIDIA A100, 16 x NVIDIA H200."""
    return ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items()))


def duration(seconds: float) -> str:
    """Return a duration, from 10 s on in whole seconds, else with at most 2 significant digits: 0.6 s, 1.2 s, 60 s."""
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.2g} s"


def size(size_bytes: float, digits: int = 5) -> str:
    """Return a number of bytes in binary units, with at most `digits` significant digits: 1 MiB, 1.5 GiB, 12 B."""
    power, unit = next((unit for unit in _UNITS if size_bytes >= 1 << unit[0]), (0, "B"))
    return f"{float(f'{size_bytes / (1 << power):.{digits}g}'):.15g} {unit}"  # 1e+03 becomes 1000


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGTERM, or signal 99 if there is none of this number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
