"""Counts false alarms: healthy runs of distcheck on a cluster of nodes, in every way that people start it.

    python tests/soak/run.py --runs 1000 --log soak.jsonl --write

Every run is a line of the log, so that what was interrupted goes on where it was. Every second round over all ways has
two busy loops beside it. Exits 1 when any run complained. Needs root and tests/cluster/install, as tests/cluster does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

import measured  # noqa: E402
from cluster.cluster import Cluster  # noqa: E402

from soak.healthy import complaint  # noqa: E402
from soak.ways import COMMANDS, WAYS  # noqa: E402

PAGE = "docs/reliability.md"
BUSY_LOOPS = 2


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"), help="one line for each run; continued")
    parser.add_argument("--write", action="store_true", help=f"write the table of all runs of the log to {PAGE}")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.log.read_text().splitlines()] if asked.log.exists() else []
    if len(rows) < asked.runs:
        cluster = Cluster()
        try:
            with asked.log.open("a") as log:
                for row in _runs(cluster, len(rows), asked.runs):
                    rows.append(row)
                    print(json.dumps(row), file=log, flush=True)
                    print(
                        f"{len(rows)}: {row['way']}, {row['command']}, {row['seconds']} s: {row['complaint'] or 'ok'}"
                    )
        finally:
            cluster.conclude()
    print("\n".join(table(rows)))
    if asked.write:
        measured.put(PAGE, "healthy runs", table(rows), command=f"{_COMMAND} --runs {len(rows)} --write")
    return int(any(row["complaint"] for row in rows))


_COMMAND = "python tests/soak/run.py"


def _runs(cluster: Cluster, first: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield what came of the runs with these numbers."""
    cycle = [(way, command) for command in COMMANDS for way in WAYS]
    for number in range(first, end):
        way, command = cycle[number % len(cycle)]
        busy = number // len(WAYS) % 2 == 1
        start = time.monotonic()
        with _loops(BUSY_LOOPS if busy else 0):
            found = complaint(cluster, way, command)
        yield {
            "way": way, "command": command[0], "busy": busy,
            "seconds": round(time.monotonic() - start, 1), "complaint": found,
        }  # fmt: skip
        if found:
            cluster.end_processes()


@contextmanager
def _loops(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the runs as a Markdown table: a line for each way."""
    lines = [
        "| started by | runs | of them beside two busy loops | with a finding above info | median s | longest s |",
        "|---|---|---|---|---|---|",
    ]
    for way in (*WAYS, None):
        of = [row for row in rows if way in {None, row["way"]}]
        seconds = sorted(row["seconds"] for row in of)
        if of:
            lines.append(
                f"| {way or 'all'} | {len(of)} | {sum(row['busy'] for row in of)} | "
                f"{sum(bool(row['complaint']) for row in of)} | {seconds[len(seconds) // 2]} | {seconds[-1]} |"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
