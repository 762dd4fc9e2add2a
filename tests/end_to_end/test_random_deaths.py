"""Rank 0 is killed at a random moment: all others end alike and name it, and nothing of the run stays."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from contextlib import suppress

import psutil
import pytest
from forms.sampled import sampled
from real.ended import BEYOND_BY_ITS_CLOCK_SECONDS

KILLS = int(os.environ.get("DISTCHECK_RANDOM_KILLS", "4"))
"""So many of each kind, with --slow only: a kill takes five seconds on an idle machine."""
SEED = os.environ.get("DISTCHECK_RANDOM_SEED") or secrets.token_hex(4)
TIMEOUT = 40
NAMING = {"env-rank-missing", "probe-process-lost", "collective-rank-died"}
"""By when it died: before it met the others, with its distcheck, without it."""
GATE = ("--timeout", str(TIMEOUT), "--join-timeout", "10", "--format", "json", "--sizes", "1M:4M", "--time-limit", "1")


@pytest.fixture
def gate(by_hand):
    """Start a gate of three ranks as three processes, rank 0's first."""
    return lambda: by_hand("gate", [0, 1, 2], 3, *GATE)


@pytest.fixture(scope="module")
def whole_runs():
    """How many seconds rank 0 took in the runs that came to their end; the last one is the best guess."""
    return []


def processes_of(run):
    """Return a run's own process, which leads, and all that it has forked."""
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(run.process.pid)
        return [leader, *leader.children(recursive=True)]
    return []


@pytest.mark.parametrize("number", sampled(range(KILLS)))
@pytest.mark.parametrize("which", sampled(["all of its processes", "one of its processes"], "all of its processes"))
def test_when_rank_0_is_killed_at_any_moment_the_others_end_alike_and_name_it(gate, whole_runs, which, number):
    if not whole_runs:
        healthy = [run.wait() for run in gate()]
        assert [e.code for e in healthy] == [0, 0, 0], healthy
        whole_runs.append(healthy[0].seconds)
    chance = random.Random(seed := f"{SEED} {which} {number}")
    runs = gate()
    after = chance.uniform(0, whole_runs[-1])
    time.sleep(max(0.0, runs[0].started + after - time.monotonic()))
    there = processes_of(runs[0])
    for victim in there if which.startswith("all") else chance.sample(there, min(1, len(there))):
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    first, *_ = ended = [run.wait() for run in runs]

    shown = f"DISTCHECK_RANDOM_SEED={SEED}: {seed}, {len(there)} processes, after {after:.2f} s: {ended}"
    left = [e for e in ended if e.code != -signal.SIGKILL]
    assert len({e.code for e in left}) == 1, shown
    told = [e.report for e in left if e.out]
    # By their own clock: a busy machine may start Python late.
    assert all(report["seconds"] < TIMEOUT + BEYOND_BY_ITS_CLOCK_SECONDS for report in told), shown
    assert not any("Traceback" in e.out + e.err for e in ended), shown
    if left[0].code == 0:  # rank 0 had delivered everything by then
        assert (first.report["verdict"], len(first.report["bandwidth"])) == ("pass", 4), shown
        whole_runs.append(first.seconds)
    else:
        assert left[0].code == 20, shown
        assert told, shown
        for report in told:
            (found,) = [f for f in report["findings"] if f["severity"] == "error"]
            assert found["rule"] in NAMING, shown
            # Who came after another had met rank 0, lost it and left has met neither.
            assert found["ranks"] == [0] or (0 in found["ranks"] and found["rule"] == "env-rank-missing"), shown
            assert report["exclude"]["nodes"] == [], shown
