"""Tells from the lines of torch's monitored_barrier() which ranks it waited for."""

from __future__ import annotations

from collections.abc import Sequence

from distcheck.explain.hang import Hang, named
from distcheck.explain.matching import Sighting


def barrier(seen: Sequence[Sighting]) -> Hang | None:
    """Return the ranks that a monitored barrier reports as late; None if no line names one."""
    lines = (s for s in seen if "barrier" in s.tags)
    line = max(lines, key=lambda s: s.values["late"].count(","), default=None)  # rather the one that names all
    if line is None:
        return None
    ranks = tuple(map(int, line.values["late"].split(",")))
    verb, they = ("is", "it") if len(ranks) == 1 else ("are", "they")
    seconds = f"{int(line.values['late_ms']) / 1000:g} s"
    says = f"{named(ranks)} {verb} behind: {they} did not reach monitored_barrier() within {seconds}"
    return Hang(kind="behind", says=f"{says}; these are numbers in the barrier's process group", ranks=ranks)
