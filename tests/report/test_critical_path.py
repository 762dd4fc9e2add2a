"""The critical path: how long each stage took, whom it waited for, and the sum."""

from __future__ import annotations

import msgspec
import pytest
from made import reported

from distcheck.facts.job import Launched, Wait
from distcheck.facts.rank import RankRun, Role
from distcheck.report import Detail, render
from distcheck.report.critical_path import critical_path

BEGAN = {"started": 0.0, "meeting": 0.304, "peers": 1.506, "collectives": 2.0, "done": 6.4}
replace = msgspec.structs.replace


def job_of(nodes=3, *, waits=(), came=(0.0, 0.1, 1.2), imports=(1.0, 1.0, 1.0), seconds=6.538):
    """Return a job with two ranks on each node; the first node's process leads."""
    job = reported.build(nodes, 2)
    processes = tuple(
        replace(p, role=Role.FOLLOWER if n else Role.LEADER, began_seconds=dict(BEGAN), arrived_seconds=came[n])
        for n, p in enumerate(job.processes)
    )
    took = {p.uid: imports[n] for n, p in enumerate(processes)}
    ranks = tuple(
        replace(r, run=RankRun(1, "done", "done", import_seconds=took[r.process], joined_seconds=0.25))
        for r in job.ranks
    )
    return replace(job, processes=processes, ranks=ranks, seconds=seconds, waits=tuple(waits))


def uid(job, node):
    return job.processes[node].uid


def step(job, stage):
    (found,) = [each for each in critical_path(job) if each.stage == stage]
    return found


def test_the_seconds_of_the_stages_add_up_to_those_of_the_run():
    for seconds in (6.4, 6.538, 9.999):
        path = critical_path(job_of(seconds=seconds))
        assert sum(each.seconds for each in path) == pytest.approx(round(seconds, 2))
    assert [(each.stage, each.seconds) for each in critical_path(job_of(seconds=6.4))][:4] == [
        ("started", 0.3), ("meeting", 1.21), ("peers", 0.49), ("collectives", 4.4),
    ]  # fmt: skip


def test_the_roll_call_waited_for_the_process_that_came_last():
    found = step(job_of(), "meeting")
    assert (found.nodes, found.ranks, found.why) == (("node3",), (4, 5), "joined 1.20 s after the first process")
    assert step(job_of(came=(0.0, 0.01, 0.02)), "meeting").nodes == (), "they came together"


def test_a_stage_waited_for_the_process_that_the_leader_heard_last():
    job = job_of()
    for stage in ("peers", "done"):
        waits = (Wait(stage, uid(job, 1), 0.4),)
        found = step(replace(job, waits=waits), stage)
        assert (found.nodes, found.ranks, found.why) == (("node2",), (2, 3), "done 0.40 s after the others")
        assert step(replace(job, waits=(replace(waits[0], seconds=0.01),)), stage).nodes == ()
        assert step(replace(job, waits=(replace(waits[0], silent=True),)), stage).why == "did not answer"


def test_the_collectives_waited_for_the_slowest_import_or_the_last_results():
    job = job_of(imports=(1.0, 3.5, 1.1))
    assert step(job, "collectives").nodes == ("node2",)
    assert step(job, "collectives").why == "import of torch 3.50 s, process group 0.25 s"
    late = replace(job, waits=(Wait("collectives", uid(job, 2), 0.7),))
    assert step(late, "collectives").nodes == ("node3",)
    assert step(late, "collectives").why.startswith("done 0.70 s after the others; import of torch 1.10 s")


def test_a_run_from_outside_has_its_launch_in_the_path():
    job = replace(job_of(seconds=9.0), launched=Launched(engine="ssh", command=("ssh",), nodes=()))
    path = critical_path(job)
    assert (path[0].stage, path[0].seconds) == ("launch", 2.6)
    assert sum(each.seconds for each in path) == pytest.approx(9.0)


def test_older_files_have_no_path():
    job = job_of()
    bare = replace(job, processes=tuple(replace(p, began_seconds={}) for p in job.processes))
    assert critical_path(bare) == ()
    assert "critical path" not in render("text", bare, reported.case(bare).diagnosis, options=Detail(timings=True))
