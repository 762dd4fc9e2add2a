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


def test_processes_share_their_software_and_the_nodes_their_tree(messages):
    first, *_, last = (m for m in shared(messages) if isinstance(m, Report))
    assert first.node.key != last.node.key
    assert first.node.pci is last.node.pci
    assert first.process.libraries is last.process.libraries
    assert first.process.ancestors is last.process.ancestors
    assert first.process.limits.namespaces is last.process.limits.namespaces


def test_ranks_share_the_variables_that_have_the_same_value(messages):
    first, *_, last = (m.ranks[0].environment for m in shared(messages) if isinstance(m, Report))
    assert first["MASTER_ADDR"] is last["MASTER_ADDR"]
    assert first["RANK"] != last["RANK"]


def test_the_ranks_of_a_node_share_what_cuda_shows(messages):
    reports = [m for m in shared(messages) if isinstance(m, Report)]
    one, other, elsewhere = (reports[n].ranks[0] for n in (0, 7, 8))
    assert one.cuda is other.cuda
    assert one.visible_gpus is other.visible_gpus
    assert elsewhere.cuda != one.cuda


def test_a_rank_that_sees_the_same_gpus_otherwise_keeps_its_view(messages):
    report = messages[1]
    (rank,) = report.ranks
    other = replace(report, ranks=(replace(rank, cuda=replace(rank.cuda, error=100)),))
    _, changed = shared([messages[0], other])
    assert changed.ranks[0].cuda.error == 100


def test_gpus_share_their_condition_where_it_is_the_same(messages):
    *_, node = (m.node for m in shared(messages) if isinstance(m, NodeReport))
    one, other = node.gpus.devices[:2]
    assert one.health.nvlinks is other.health.nvlinks
    assert one.health.temperature_celsius != other.health.temperature_celsius


def test_ranks_share_what_nccl_logged(messages):
    runs = [run for m in shared(messages) if isinstance(m, RunReport) for run in m.runs.values()]
    assert runs[0].nccl.devices is runs[-1].nccl.devices
    assert runs[0].nccl.peers != runs[-1].nccl.peers


def test_facts_that_are_missing_in_between_make_no_difference(messages):
    first, *_, last = (m for m in messages if isinstance(m, Report))
    between = replace(last, node=replace(last.node, pci=NO_TREE), process=replace(last.process, libraries=None))
    first, between, last = shared([first, between, last])
    assert last.node.pci is first.node.pci
    assert last.process.libraries is first.process.libraries
    assert between.node.pci == NO_TREE
    assert between.process.libraries is None
