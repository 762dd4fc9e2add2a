"""Records of several processes become one job, in one pass however many there are."""

from __future__ import annotations

from made.jobs import healthy_job
from msgspec.structs import replace

from distcheck.facts import saved
from distcheck.facts.merge import combine
from distcheck.facts.saved import join, merge


def records(job):
    """Return what each process of a job knows by itself."""
    nodes = {node.key: node for node in job.nodes}
    return [
        replace(job, nodes=(nodes[p.node],), processes=(p,), ranks=tuple(r for r in job.ranks if r.process == p.uid))
        for p in job.processes
    ]


def facts(jobs):
    return [(job.nodes, job.processes, job.ranks) for job in jobs]


def test_records_of_all_processes_make_the_whole_job_whatever_their_order():
    job = healthy_job(4, 2)
    first, *others = records(job)
    assert join(first, facts(others)) == job
    assert join(first, facts(reversed(others))).ranks == job.ranks


def test_a_process_that_is_known_or_comes_twice_counts_once():
    job = healthy_job(2, 2)
    first, second, *_ = records(job)
    assert join(job, facts([first, second])) is job
    assert join(first, facts([second, second])).processes == job.processes[:2]


def test_many_records_are_combined_once(monkeypatch):
    calls = []
    monkeypatch.setattr(saved, "combine", lambda pairs: calls.append(1) or combine(pairs))
    job = healthy_job(16, 2)
    assert merge(records(job)).ranks == job.ranks
    assert len(calls) == 1


def test_the_longest_record_with_further_facts_gives_the_seconds():
    first, second, third = records(healthy_job(3, 1))
    assert (
        merge([replace(first, seconds=3.0), replace(second, seconds=5.0), replace(third, seconds=4.0)]).seconds == 5.0
    )
    assert merge([replace(first, seconds=3.0), replace(first, seconds=5.0)]).seconds == 3.0
