"""Counts false alarms of `distcheck hang`: looks at jobs that work.

    python tests/soak/looks.py --write

The jobs are those of tests/hang/jobs. Each runs in two ways, some at a time, and is looked at four times in each. Exits
1 when one was called hung.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

import measured  # noqa: E402
from hang.expected import HEALTHY  # noqa: E402
from hang.started import LAUNCHERS, Starter, start  # noqa: E402
from real.ports import claimed_port  # noqa: E402

PAGE = "docs/reliability.md"
FORKED, *OTHERS = LAUNCHERS
LOOKS_PER_JOB = 4
ANSWERS = ("not hung", "slow", "cannot tell", "hung")


class Looked(NamedTuple):
    """What one look said."""

    way: str
    case: str
    answer: str
    seconds: float


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="jobs that run at a time")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE}")
    asked = parser.parse_args()
    jobs = [(name, way) for name, other in zip(HEALTHY, itertools.cycle(OTHERS)) for way in (FORKED, other)]
    starter = Starter([])
    try:
        with ThreadPoolExecutor(asked.jobs) as pool:
            rows = [row for found in pool.map(partial(looked, starter), jobs) for row in found]
    finally:
        starter.end()
    print("\n".join(table(rows)))
    if asked.write:
        measured.put(PAGE, "healthy looks", table(rows), command="python tests/soak/looks.py --write")
    return int(any(row.answer == "hung" for row in rows))


def looked(starter: Starter, wanted: tuple[str, str]) -> list[Looked]:
    """Return what looks at a job that works said."""
    name, way = wanted
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="hang") as short,
        claimed_port(f"gw{threading.get_native_id() % 8}") as port,
    ):
        job = start(way, HEALTHY[name], Path(folder), port, short, lambda: starter, [])
        try:
            try:
                job.ready()
            except AssertionError as error:  # on a machine that is too busy
                print(f"{name}, {way}: {error}", flush=True)
                return []
            return [_look(job.tops[0].pid, way, name) for _ in range(LOOKS_PER_JOB)]
        finally:
            job.end()


def _look(pid: int, way: str, name: str) -> Looked:
    began = time.monotonic()
    command = [sys.executable, "-m", "distcheck", "hang", "--format", "json", "--pid", str(pid)]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=90, check=False)
    row = Looked(way, name, json.loads(ended.stdout)["hang"]["answer"], round(time.monotonic() - began, 1))
    print(f"{name}, {way}, {row.seconds} s: {row.answer}", flush=True)
    return row


def table(rows: Sequence[Looked]) -> list[str]:
    """Return the looks as a Markdown table: a line for each way."""
    lines = [f"| started by | jobs | looks | {' | '.join(ANSWERS)} | median s | longest s |", "|---" * 9 + "|"]
    for way in (*LAUNCHERS, None):
        of = [row for row in rows if way in {None, row.way}]
        seconds = sorted(row.seconds for row in of)
        counts = " | ".join(str(sum(row.answer == answer for row in of)) for answer in ANSWERS)
        if of:
            name = "forked, as if by hand" if way == FORKED else way or "all"
            jobs = len({(row.way, row.case) for row in of})
            lines.append(f"| {name} | {jobs} | {len(of)} | {counts} | {seconds[len(seconds) // 2]} | {seconds[-1]} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
