"""Equal parts of different messages become one object, and nothing else changes."""

import msgspec
import pytest
from made import real_job

from distcheck.facts.base import Missing
from distcheck.rollcall.protocol import FromFollower, NodeReport, PeerReport, Report, RunReport
from distcheck.rollcall.sharing import Sharing

NO_TREE = Missing(reason="only the process of local rank 0 sends them")
replace = msgspec.structs.replace


def received(message):
    """Return a message as it is decoded: none of its objects is part of another message."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromFollower)


@pytest.fixture(scope="module")
def job():
    return real_job.healthy(2)


@pytest.fixture(scope="module")
def messages(job):
    """Return what the processes of two nodes send."""
    on = {node.key: node for node in job.nodes}
    ranks = {rank.process: rank for rank in job.ranks}
    return [
        *(Report(on[p.node], p, (replace(ranks[p.uid], run=None),)) for p in job.processes),
        *(RunReport({rank.placement.rank: rank.run}, ()) for rank in job.ranks),
        *(NodeReport(node) for node in job.nodes),
        PeerReport(job.peers),
    ]


def shared(messages):
    share, decoded = Sharing().share, [received(message) for message in messages]
    for message in decoded:
        share(message)
    return decoded


def test_no_fact_changes(messages):
    assert shared(messages) == messages


def test_equal_parts_of_nodes_processes_and_ranks_are_one_object(messages):
    decoded = shared(messages)
    reports = [m for m in decoded if isinstance(m, Report)]
    first, *_, last = reports
    assert first.node.key != last.node.key
    assert first.node.pci is last.node.pci
    for part in ("libraries", "ancestors"):
        assert getattr(first.process, part) is getattr(last.process, part)
    assert first.process.limits.namespaces is last.process.limits.namespaces
    one, other, elsewhere = (reports[n].ranks[0] for n in (0, 7, 8))
    assert one.environment["MASTER_ADDR"] is elsewhere.environment["MASTER_ADDR"]
    assert one.cuda is other.cuda
    assert one.visible_gpus is other.visible_gpus
    runs = [run for m in decoded if isinstance(m, RunReport) for run in m.runs.values()]
    assert runs[0].nccl.devices is runs[-1].nccl.devices
    *_, node = (m.node for m in decoded if isinstance(m, NodeReport))
    assert node.gpus.devices[0].health.nvlinks is node.gpus.devices[1].health.nvlinks


def test_a_rank_that_sees_the_same_gpus_otherwise_keeps_its_view(messages):
    report = messages[1]
    (rank,) = report.ranks
    other = replace(report, ranks=(replace(rank, cuda=replace(rank.cuda, error=100)),))
    _, changed = shared([messages[0], other])
    assert changed.ranks[0].cuda.error == 100


def test_facts_that_are_missing_in_between_make_no_difference(messages):
    first, *_, last = (m for m in messages if isinstance(m, Report))
    between = replace(last, node=replace(last.node, pci=NO_TREE), process=replace(last.process, libraries=None))
    first, between, last = shared([first, between, last])
    assert last.node.pci is first.node.pci
    assert last.process.libraries is first.process.libraries
    assert between.node.pci == NO_TREE
    assert between.process.libraries is None
