"""One healthy gate after another: none reports a fault, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

LANES = 2


def kept_by_the_kernel():
    """Return what outlives processes: how many pieces of shared memory, semaphores and message queues there are."""
    return {kind: len(Path("/proc/sysvipc", kind).read_text().splitlines()) for kind in ("shm", "sem", "msg")}


def marked(mark):
    """Return the processes that carry the test's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DISTCHECK_TEST_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def lanes(tmp_path):
    """A folder for temporary files for every gate that runs at the same time."""
    made = [tmp_path / f"lane{number}" for number in range(LANES)]
    for lane in made:
        lane.mkdir()
    return made


def test_healthy_gates_in_a_row_find_nothing_and_leave_nothing(start, port, mark, lanes, tmp_path, request):
    runs = int(os.environ.get("DISTCHECK_SOAK_RUNS") or (50 if request.config.getoption("slow") else LANES))
    before, files, seconds = kept_by_the_kernel(), sorted(tmp_path.rglob("*")), []
    for first in range(0, runs, LANES):
        # The same two ports every time: who kept one would be in the way of the next.
        running = [
            start(
                "gate", "--nproc", str(2 + (first // LANES + number) % 3), "--master-port", str(port + number),
                "--format", "json", env={"TMPDIR": str(lane), "DISTCHECK_TOKEN": f"{mark} {number}"},
            )
            for number, lane in enumerate(lanes)
        ]  # fmt: skip
        for run in running:
            ended = run.wait()
            report = ended.report
            assert (ended.code, report["verdict"], report["findings"]) == (0, "pass", []), report["findings"]
            assert {row["status"] for row in report["ranks"]} == {"ok"}
            seconds.append(ended.seconds)
        assert marked(mark) == []
        assert sorted(tmp_path.rglob("*")) == files
        assert kept_by_the_kernel() == before
    print(f"{runs} gates of {min(seconds):.1f} to {max(seconds):.1f} s")
