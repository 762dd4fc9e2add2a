"""What the groups of a search run."""

from made.jobs import healthy_job
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.groups import GroupFigure
from distcheck.facts.job import Collectives
from distcheck.facts.mesh import Mesh
from distcheck.isolation.schedule import next_round
from distcheck.isolation.state import start
from distcheck.run.search import _announced, searched_with

MESH = Mesh({"pp": 2, "ep": 2, "tp": 2})
"""On four nodes of two ranks."""


def figure(dimension, op, slow=None, **more):
    seconds = tuple(0.1 if group == slow else 0.01 for group in range(4))
    return GroupFigure(dimension, op, 1 << 20, seconds=seconds, best_seconds=seconds, **more)


def job_with(*groups):
    job = healthy_job(4, (2, 2, 2, 2), looks=("environment", "meeting", "collectives"), mesh=MESH)
    return replace(job, collectives=Collectives("nccl", mesh=MESH if groups else None, groups=groups))


def test_a_round_is_announced_with_its_groups_and_nodes():
    for nodes, groups in ((["node1"], "1 group on 1 node"), (["node1", "node2"], "2 groups on 2 nodes")):
        state = start(nodes)
        assert _announced(next_round(state), state) == f"round 1: alone, {groups}"


def test_without_a_mesh_two_operations_show_a_bad_node():
    assert searched_with(job_with()) == ("all_reduce", "broadcast")
    assert searched_with(replace(job_with(), collectives=Missing("not asked for"))) == ("all_reduce", "broadcast")


def test_a_mesh_adds_what_its_groups_do():
    job = job_with(figure("ep", "all_to_all"), figure("tp", "all_gather"))
    assert searched_with(job) == ("all_reduce", "broadcast", "all_to_all", "all_gather")


def test_what_this_torch_lacks_is_not_run():
    job = job_with(figure("ep", "all_to_all"), figure("tp", "reduce_scatter", lacks="no support for reduce_scatter"))
    assert "reduce_scatter" not in searched_with(job)


def test_what_a_pipeline_sends_is_searched_with_the_same_transfers_in_groups_of_any_size():
    assert searched_with(job_with(figure("pp", "send_recv"))) == ("all_reduce", "broadcast", "all_to_all")


def test_the_speed_of_what_is_slow_is_judged():
    job = job_with(figure("tp", "all_gather"), figure("ep", "all_to_all", slow=2))
    assert searched_with(job) == ("all_to_all", "all_reduce", "broadcast", "all_gather")
