"""Where every rank is a process of its own, the facts of a node are sent once, and the merged job is the same."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from made import real_job
from made.jobs import healthy_job

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuHealth
from distcheck.rollcall.brief import brief
from distcheck.rollcall.protocol import Report
from distcheck.run.record import Record

replace = msgspec.structs.replace


def reports(*, nodes: int = 2, health: bool = True) -> list[Report]:
    """The whole reports of a job whose nodes have four processes with a GPU each; the first reads the GPUs' health."""
    job = healthy_job(nodes, 4, launcher="slurm", looks=("environment", "meeting", "gpu"), gpus=4)
    node_of = {node.key: node for node in job.nodes}
    told = []
    for process, rank in zip(job.processes, job.ranks, strict=True):
        node = node_of[process.node]
        read = GpuHealth() if health and not rank.placement.local_rank else None
        devices = tuple(replace(gpu, health=read) for gpu in node.gpus.devices)
        told.append(Report(replace(node, gpus=replace(node.gpus, devices=devices)), process, (rank,)))
    return told


def seeing(report: Report, *places: int) -> Report:
    """The report of a process that sees only some of its node's GPUs."""
    gpus = report.node.gpus
    return replace(report, node=replace(report.node, gpus=replace(gpus, devices=[gpus.devices[n] for n in places])))


def leader_of(own: Report) -> Record:
    asked = Asked(command="gpu", looks=("environment", "meeting", "gpu"))
    record = Record(SimpleNamespace(asked=asked, start=0.0, placements=()))
    record.uid, record.node, record.process, record.ranks = own.process.uid, own.node, own.process, own.ranks
    return record


def merged(own: Report, others: list[Report]):
    record = leader_of(own)
    record.take_reports(others)
    assert record.briefly_told == ()
    return replace(record.job(), run="", seconds=0.0)


def test_the_merged_job_is_that_of_whole_reports():
    own, *others = reports()
    short = [brief(report) for report in others]
    assert [report.ranks[0].placement.rank for report in short if report.brief] == [1, 2, 3, 5, 6, 7]
    assert merged(own, short) == merged(own, others)


def test_a_brief_report_is_a_fraction_of_a_whole_one():
    job = real_job.healthy(1)
    devices = tuple(replace(gpu, health=None, load=None) for gpu in job.nodes[0].gpus.devices)
    gpus = replace(job.nodes[0].gpus, devices=devices)
    node = replace(job.nodes[0], gpus=gpus, infiniband=None, host=None)  # what is read once per node
    last = Report(node, job.processes[0], tuple(replace(rank, run=None) for rank in job.ranks[-1:]))
    whole, short = (len(msgspec.msgpack.encode(report)) for report in (last, brief(last)))
    assert short < whole / 3


def test_a_late_process_brings_the_facts_for_those_before_it():
    own, *others = reports()
    (first,) = [report for report in others if not brief(report).brief]
    record = leader_of(own)
    record.take_reports([brief(report) for report in others if report is not first])
    assert len(record.briefly_told) == 3
    record.take_late_reports([first])
    assert replace(record.job(), run="", seconds=0.0) == merged(own, [*others[:3], *others[4:], first])


def test_who_sees_other_gpus_is_asked_for_them():
    own, *others = reports()
    others[-1] = seeing(others[-1], 3)
    record = leader_of(own)
    record.take_reports(map(brief, others))
    assert record.briefly_told == (others[-1].process.uid,)
    record.take_nodes({others[-1].process.uid: others[-1].node})
    assert replace(record.job(), run="", seconds=0.0) == merged(own, others)


def test_who_is_alone_on_a_node_is_asked_for_it():
    own, *others = reports()
    record = leader_of(own)
    record.take_reports(map(brief, [*others[:3], others[-1]]))
    assert record.briefly_told == (others[-1].process.uid,)
    told = {others[-1].process.uid: others[-1].node}
    record.take_nodes({uid: replace(node, key="another node") for uid, node in told.items()})
    assert record.briefly_told, "the facts of another node are not taken"
    record.take_nodes(told)
    assert replace(record.job(), run="", seconds=0.0) == merged(own, [*others[:3], others[-1]])


FIRST, OTHER = reports(nodes=1)[:2]
HUNG = Missing("NVML did not answer within 10 s")


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(FIRST, id="local rank 0"),
        pytest.param(replace(OTHER, ranks=(*OTHER.ranks, *FIRST.ranks)), id="a process of several ranks"),
        pytest.param(replace(OTHER, node=FIRST.node), id="it has read the GPUs' health"),
        pytest.param(
            replace(OTHER, node=replace(OTHER.node, gpus=replace(OTHER.node.gpus, unread=HUNG.reason))),
            id="it could not read the GPUs' health",
        ),
        pytest.param(replace(OTHER, node=replace(OTHER.node, gpus=HUNG)), id="it sees no GPU"),
        pytest.param(replace(OTHER, node=replace(OTHER.node, storage=HUNG)), id="it has looked at the storage"),
    ],
)
def test_facts_that_no_other_process_has_are_always_sent(report):
    assert brief(report) == report
