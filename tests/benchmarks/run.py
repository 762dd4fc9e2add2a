"""Measure distcheck against what people would use instead: ``python tests/benchmarks/run.py``.

``--only NAME`` measures the rows of one kind, also of those that take too long for a whole run; ``--write`` writes
them into docs/benchmarks.md, and their unit costs into docs/scale.md, which wants a quiet machine. What is measured is
an installed, compiled package, not the checkout: pip installs it into a temporary folder.

Absolute times say little on a machine that has other work, so ratios are judged, by their own spread: see ratio.py. The
exit code is 0 if every row is met, 20 if some are only undecided, else 1. A row that could not be measured is not met
and says why. Rows of several nodes run on the test cluster, which needs root and its packages (see
tests/cluster/install).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tabulate

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import build_scale
import measured
from benchmarks.programs import install
from benchmarks.ratio import Estimate, Interval, Row, at_most, counted
from benchmarks.rows import BENCHMARKS, TOO_LONG_FOR_A_WHOLE_RUN

PAGE = "docs/benchmarks.md"
WHOLE_RUN, WHOLE_RUN_SECONDS = "whole_run", 600.0


class Measured(NamedTuple):
    """The rows of a benchmark and the seconds that they took."""

    rows: list[Row]
    seconds: float


def measure(name: str) -> Measured:
    """Measure one benchmark; say on stderr how long that took."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        rows = BENCHMARKS[name]()
    except Exception as error:  # noqa: BLE001 the other benchmarks go on
        rows = [Row(name, None, None, None, (0.0, 0.0), error=f"{type(error).__name__}: {error}")]
    took = time.monotonic() - start
    print(f"{name}: {took:.0f} s, met: {_counts(rows)}", file=sys.stderr, flush=True)
    return Measured(rows, took)


def chosen(only: str | None) -> list[str]:
    """Return the names of the benchmarks to measure."""
    return [name for name in BENCHMARKS if (name not in TOO_LONG_FOR_A_WHOLE_RUN if only is None else only in name)]


def _counts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{number} {met}" for met, number in Counter(row.met for row in rows).items())


def write(name: str, rows: Sequence[Row]) -> None:
    """Write the rows of one benchmark into the page; rows that could not be measured leave the page as it is."""
    if errors := [row.error for row in rows if row.error]:
        print(f"{name} is not written: {'; '.join(errors)}", file=sys.stderr)
        return
    command = f"python tests/benchmarks/run.py --only {name} --write"
    measured.put(PAGE, name, as_text(rows, "github").splitlines(), command=command)
    if costs := {cost: value for row in rows for cost, value in row.costs.items()}:
        build_scale.keep(name, command, costs)


def as_text(rows: Sequence[Row], form: str = "simple") -> str:
    noise = any(row.noise for row in rows)
    headers = ["what", "ours", "theirs", "unit", "times", "ratio", "+-", "theirs / theirs", "goal", "met"]
    lines = [
        [
            row.name,
            row.ours,
            row.theirs,
            row.unit,
            row.times,
            row.ratio.middle if row.ratio else None,
            off(row.ratio),
            f"{row.noise.middle:.3f} +- {off(row.noise)}" if row.noise else None,
            row.error or bounds(row.goal),
            row.met,
        ]
        for row in rows
    ]
    shown = [place for place, header in enumerate(headers) if noise or header != "theirs / theirs"]
    table = [[line[place] for place in shown] for line in lines]
    return tabulate.tabulate(table, [headers[place] for place in shown], form, floatfmt=".4g", missingval="-")


def of_benchmarks(found: Mapping[str, Measured]) -> list[str]:
    """Return the table of what each benchmark took and how many of its rows are met."""
    table = [[name, f"{of_one.seconds:.0f}", _counts(of_one.rows)] for name, of_one in found.items()]
    return tabulate.tabulate(table, ["benchmark", "seconds", "met"], "github").splitlines()


def off(ratio: Estimate | None) -> str:
    """Return by how much a ratio may be off; 0 for what is the same in every run."""
    if ratio is None:
        return "-"
    return f"{ratio.off:.2g}" if math.isfinite(ratio.off) else "unknown"


def bounds(goal: Interval) -> str:
    if math.isinf(goal[1]):
        return f"at least {goal[0]:g}"
    return f"at most {goal[1]:g}" if math.isinf(goal[0]) else f"{goal[0]:g} to {goal[1]:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure distcheck against what people would use instead.")
    parser.add_argument("--only", metavar="NAME", help=f"part of one of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--write", action="store_true", help=f"write the rows into {PAGE}")
    asked = parser.parse_args()
    names = chosen(asked.only)
    if not names:
        parser.error(f"no benchmark's name contains {asked.only!r}; there are {', '.join(BENCHMARKS)}")
    start = time.monotonic()
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        for name in names:
            found[name] = measure(name)
            if asked.write:
                write(name, found[name].rows)
    if asked.only is None:
        seconds = time.monotonic() - start
        share = seconds / WHOLE_RUN_SECONDS
        whole = counted("all benchmarks / 10 minutes", seconds, WHOLE_RUN_SECONDS, share, at_most(1.0), "s")
        found[WHOLE_RUN] = Measured([whole], seconds)
        if asked.write:
            command = "python tests/benchmarks/run.py --write"
            measured.put(PAGE, WHOLE_RUN, of_benchmarks(found), command=command)
    rows = [row for of_one in found.values() for row in of_one.rows]
    print(as_text(rows))
    return exit_code(rows)


def exit_code(rows: Sequence[Row]) -> int:
    met = {row.met for row in rows}
    return 1 if "NO" in met else 20 if "undecided" in met else 0


if __name__ == "__main__":
    sys.exit(main())
