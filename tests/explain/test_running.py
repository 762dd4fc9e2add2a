"""What the dumps of real NCCL ranks say of a job that still runs; tests/recorded/failed_jobs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from made.running import busy, running
from msgspec.structs import replace

from distcheck.explain.flight.answer import flight_explained
from distcheck.explain.flight.running import recorded
from distcheck.facts.hang import WrittenDump
from distcheck.probe.hang.dumps import written

RECORDED = Path(__file__).parents[1] / "recorded" / "failed_jobs"


@pytest.fixture
def said(tmp_path):
    """Return what is said of a job whose ranks wrote these dumps so long after they were last seen to call."""

    def of(job, *, after=60, size=0):
        ranks = []
        for file in sorted((RECORDED / job).glob("nccl_trace_rank_*")):
            own = Path(shutil.copy(file, tmp_path))
            called = max(call.called_at_ns for call in flight_explained([own], []).ranks) / 1e9
            os.utime(own, (called + after,) * 2)
            when, length = written(own)
            dump = WrittenDump(str(own), when, length + size)
            ranks.append(replace(busy(int(file.name[-1]), cuda=True), dump=dump))
        return recorded(running(*ranks)).recorded

    return of


def test_the_rank_that_is_behind_is_named_with_those_that_wait(said):
    found = said("sleeps")
    assert (found.ranks, found.waiting) == ((1,), (0,))
    assert found.says.startswith("rank 1 is behind: rank 0 waits in collective 12")


@pytest.mark.parametrize(
    ("job", "more"),
    [("sleeps", {"after": 2}), ("sleeps", {"size": 1}), ("killed", {})],
    ids=["written while a healthy job would wait, too", "another file by now", "a rank without a dump"],
)
def test_what_may_be_of_a_healthy_moment_says_nothing(said, job, more):
    assert said(job, **more) is None
