"""Bounds: the published rules of thumb, and properties that hold for any machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.expectation import bounds
from distcheck.expectation.hardware import Adapters, Hardware, NvLinkWay, PcieWay, Socket
from distcheck.expectation.judge import impossible, judge
from distcheck.expectation.ladder import Figure, expect
from distcheck.expectation.links import AMPERE, BLACKWELL, HOPPER, nvlink_kind, pcie_rate, pcie_wire
from distcheck.facts.base import Missing

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
KINDS = st.sampled_from([AMPERE, HOPPER, BLACKWELL])
ALGORITHMS = st.sampled_from([None, "RING", "TREE", "NVLS", "NVLSTree", "COLLNET_CHAIN"])
WAYS = st.one_of(
    st.builds(NvLinkWay, KINDS, st.integers(1, 18), st.booleans(), st.booleans()),
    st.builds(PcieWay, st.integers(3, 6), st.sampled_from([1, 8, 16])),
)
NETWORKS = st.one_of(
    st.builds(Adapters, st.integers(1, 16), st.sampled_from([100.0, 200.0, 400.0]), infiniband=st.booleans()),
    st.builds(Socket, st.just("node1"), st.just("eth0"), st.sampled_from([100, 1000, 10_000, 100_000])),
)


@st.composite
def machines(draw):
    nodes, per_node = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    if nodes * per_node < 2:
        per_node = 2
    return Hardware(
        draw(st.sampled_from(["nccl", "nccl", "gloo"])),
        nodes * per_node,
        nodes,
        per_node,
        inside=draw(WAYS) if per_node > 1 else None,
        outside=draw(NETWORKS) if nodes > 1 else None,
    )


@given(machines(), st.sampled_from(OPERATIONS), ALGORITHMS)
def test_the_usual_range_is_ordered_and_below_the_bound(where, op, algorithm):
    found = expect(op, where, ranks=where.ranks, algorithm=algorithm)
    assert found.source
    if found.value_GBps is None:
        assert found.rung == "none"
        assert judge(1.0, found) == "not judged"
        return
    assert 0 < found.low_GBps <= found.value_GBps <= found.most_GBps
    if found.high_GBps is not None:
        assert found.most_GBps <= found.high_GBps * 1.000001
    assert judge(found.value_GBps, found) == "ok"


@given(KINDS, st.integers(1, 17), st.integers(2, 64), st.sampled_from(OPERATIONS), ALGORITHMS)
def test_more_links_never_lower_an_expectation(kind, links, ranks, op, algorithm):
    less, more = (
        expect(op, Hardware("nccl", ranks, 1, ranks, inside=NvLinkWay(kind, n)), ranks=ranks, algorithm=algorithm)
        for n in (links, links + 1)
    )
    assert more.high_GBps > less.high_GBps
    assert (more.value_GBps or 0) >= (less.value_GBps or 0)


@given(st.integers(2, 64), st.integers(1, 16), st.integers(1, 15), st.sampled_from(OPERATIONS), ALGORITHMS)
def test_more_adapters_never_lower_an_expectation(nodes, per_node, number, op, algorithm):
    def at(count):
        inside = NvLinkWay(HOPPER, 18) if per_node > 1 else None
        where = Hardware("nccl", nodes * per_node, nodes, per_node, inside=inside, outside=Adapters(count, 400.0))
        return expect(op, where, ranks=where.ranks, algorithm=algorithm)

    less, more = at(number), at(number + 1)
    assert more.high_GBps >= less.high_GBps
    assert (more.value_GBps or 0) >= (less.value_GBps or 0)


@given(st.integers(2, 64), st.integers(1, 16), st.floats(1, 1000))
def test_a_tree_over_nodes_is_never_slower_than_their_adapters(nodes, m, rate):
    assert bounds.across(nodes * m, nodes, rate) >= rate * (1 - 1e-9)


@given(st.integers(2, 1000), st.floats(1, 1000))
def test_reducing_switches_approach_twice_the_links(ranks, rate):
    assert bounds.in_switch(ranks, rate) < 2 * rate
    assert bounds.within(ranks, ranks, rate, adding_switches=True) >= bounds.in_switch(ranks, rate) * (1 - 1e-9)
    assert bounds.within(ranks, ranks, rate, adding_switches=False) == pytest.approx(rate)


@pytest.mark.parametrize(("nodes", "factor"), [(2, 1.875), (4, 1.29), (16, 1.06)])
def test_trees_exceed_the_adapters_by_the_documented_factor(nodes, factor):
    assert bounds.across(8 * nodes, nodes, 1.0) == pytest.approx(factor, abs=0.005)


def test_nvls_on_eight_h100_is_bounded_by_577():
    assert bounds.in_switch(8, 18 * 20.6) == pytest.approx(577, abs=0.5)


@pytest.mark.parametrize(
    ("op", "most"), [("broadcast", 50.0), ("all_gather", 93.75), ("all_to_all", 11.72), ("send_recv", 50.0)]
)
def test_operations_over_two_nodes_of_eight_are_bounded_by_their_adapters(op, most):
    assert bounds.at_most(op, 16, 2, per_gpu=400.0, per_node=50.0) == pytest.approx(most, abs=0.01)


def test_reducing_networks_raise_only_the_bound_of_many_nodes():
    def at_most(nodes, *, adding):
        return bounds.at_most("all_reduce", 8 * nodes, nodes, per_gpu=900, per_node=400, adding_network=adding)

    assert at_most(2, adding=True) == at_most(2, adding=False)
    assert at_most(16, adding=True) > 1.8 * at_most(16, adding=False)


@pytest.mark.parametrize(
    ("version", "speed", "name"),
    [(2, None, "Volta"), (4, 25781, "Ampere"), (6, 26562, "Hopper"), (7, None, "Blackwell")],
)
def test_a_generation_of_nvlink_is_known_by_nvmls_number(version, speed, name):
    assert nvlink_kind(version, speed).name == name


def test_slow_ampere_links_are_recognised_and_unknown_generations_stay_unknown():
    assert nvlink_kind(4, 14062).rate_GBps == 12.0
    assert nvlink_kind(99) is None


@pytest.mark.parametrize(("generation", "rate"), [(3, 12), (4, 24), (5, 48), (6, 96)])
def test_nccls_figure_for_pcie_x16_is_below_the_wire_rate(generation, rate):
    assert pcie_rate(generation, 16) == rate < pcie_wire(generation, 16)


H100_NODE = Hardware("nccl", 8, 1, 8, inside=NvLinkWay(HOPPER, 18))


@pytest.mark.parametrize(
    ("measured", "share", "standing"),
    [
        (361, 1.0, "ok"), (330, 1.0, "ok"), (320, 1.0, "low"), (280, 1.0, "too low"), (398, 1.0, "ok"),
        (280, 0.85, "ok"), (None, 1.0, "not judged"), (361, None, "not judged"),
    ],
)  # fmt: skip
def test_a_figure_is_judged_by_the_usual_figure_at_its_size(measured, share, standing):
    assert judge(measured, expect("broadcast", H100_NODE, ranks=8), share) == standing


def test_the_ladder_uses_the_best_available_rung():
    given, saved, graph = Figure(300, "--min-busbw"), Figure(350, "job.json"), Figure(355, "graph")
    assert expect("broadcast", H100_NODE, ranks=8, given=given, baseline=saved, nccl=graph).rung == "given"
    assert expect("broadcast", H100_NODE, ranks=8, baseline=saved, nccl=graph).rung == "baseline"
    assert expect("broadcast", H100_NODE, ranks=8, nccl=graph).rung == "derived"
    unread = Hardware("nccl", 8, 1, 8, inside=Missing("not read"))
    assert expect("broadcast", unread, ranks=8, nccl=graph).rung == "nccl"
    assert expect("broadcast", unread, ranks=8).rung == "none"


def test_a_threshold_above_the_bound_is_ignored():
    found = expect("broadcast", H100_NODE, ranks=8, given=Figure(406, "--min-busbw"))
    assert found.rung == "derived"
    assert impossible(406, found)
    assert not impossible(404, found)
    assert expect("broadcast", H100_NODE, ranks=8, given=Figure(404, "--min-busbw")).high_GBps == pytest.approx(405)


@pytest.mark.parametrize("backend", ["mpi", "ucc"])
def test_other_backends_have_no_expectation(backend):
    where = Hardware(backend, 8, 1, 8)
    assert expect("all_reduce", where, ranks=8).source == f"there is no expectation for {backend}"


def test_direct_links_and_few_ranks_are_not_certain():
    direct = Hardware("nccl", 8, 1, 8, inside=NvLinkWay(HOPPER, 18, switched=False, exact=False))
    assert not expect("all_reduce", direct, ranks=8).certain
    assert expect("all_reduce", direct, ranks=8).most_GBps < 371
    two = Hardware("nccl", 2, 1, 2, inside=NvLinkWay(HOPPER, 18))
    assert not expect("broadcast", two, ranks=2).certain


def test_uneven_nodes_and_pcie_in_virtual_machines_have_no_bound():
    uneven = Hardware("nccl", 9, 2, 1, inside=NvLinkWay(HOPPER, 18), outside=Adapters(8, 400.0), even=False)
    assert expect("all_to_all", uneven, ranks=9).high_GBps is None
    assert not expect("all_reduce", uneven, ranks=9, algorithm="RING").certain
    virtual = Hardware("nccl", 4, 1, 4, inside=PcieWay(1, 16, virtual=True))
    assert expect("all_reduce", virtual, ranks=4).high_GBps is None


def test_gloo_crosses_a_link_as_often_as_rank_order_leaves_its_node():
    slow = Socket("node2", "eth0", 1000)
    once = expect("all_reduce", Hardware("gloo", 8, 2, 4, outside=slow), ranks=8)
    often = expect("all_reduce", Hardware("gloo", 8, 2, 4, outside=Socket("node2", "eth0", 1000, 4)), ranks=8)
    assert once.value_GBps == pytest.approx(0.1175)
    assert often.value_GBps == pytest.approx(0.1175 / 4)
    assert "crosses it 4 times" in often.source
