"""Records of several processes become one job, in one pass however many there are."""

from __future__ import annotations

from made.jobs import healthy_job
from msgspec.structs import replace

from distcheck.facts import saved
from distcheck.facts.gpu import Gpu, Gpus
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


def test_processes_that_each_see_their_own_gpu_keep_it_and_the_node_has_all():
    def with_gpu(record, number):
        gpu = Gpu(
            index=0, uuid=f"GPU-{number}", pci=f"0000:0{number}:00.0", name="H200", memory_bytes=1, memory_used_bytes=0
        )
        (node,) = record.nodes
        return replace(record, nodes=(replace(node, gpus=Gpus(driver="1", cuda_driver="12.4", devices=(gpu,))),))

    first, *others = (with_gpu(record, n) for n, record in enumerate(records(healthy_job(1, 3))))
    whole = join(first, facts(others))
    assert [gpu.uuid for gpu in whole.nodes[0].gpus.devices] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [[gpu.uuid for gpu in p.gpus.devices] for p in whole.processes] == [["GPU-0"], ["GPU-1"], ["GPU-2"]]


def test_the_longest_record_with_further_facts_gives_the_seconds():
    first, second, third = records(healthy_job(3, 1))
    assert (
        merge([replace(first, seconds=3.0), replace(second, seconds=5.0), replace(third, seconds=4.0)]).seconds == 5.0
    )
    assert merge([replace(first, seconds=3.0), replace(first, seconds=5.0)]).seconds == 3.0
