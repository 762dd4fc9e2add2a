"""Counters that grew between two readings of a made-up tree of /sys."""

from __future__ import annotations

import pytest
from made import hcas
from made.hcas import roce

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import grown
from distcheck.probe import infiniband

LOOKS = ("environment", "meeting", "peers", "collectives")
NODE2 = ((2, 3), ("node2",))


@pytest.fixture
def after(read, tmp_path):
    """Return the facts of a node whose counters went from one reading to another."""

    def after(**counters):
        before = read([roce(counters={"symbol_error": 100, "packet_seq_err": 100, "link_downed": 3})])
        again = hcas.write(tmp_path / "again", [roce(counters=counters)])
        return grown(before, infiniband.collect_counters(again))

    return after


def told(judge, job):
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in judge(job, "fabric.counters").findings]


def test_errors_from_earlier_do_not_matter(fabric, after, judge):
    same = after(symbol_error=105, packet_seq_err=104, link_downed=3, rp_cnp_handled=5000, out_of_sequence=900)
    assert told(judge, fabric(same, same, looks=LOOKS)) == []


@pytest.mark.parametrize("grew", [{"symbol_error": 150}, {"link_downed": 4}])
def test_ib_hw_counters_growing_names_the_port(fabric, after, judge, grew):
    job = fabric(after(), after(**grew), looks=LOOKS)
    assert told(judge, job) == [("ib-hw-counters-growing", "warning", *NODE2)]
    (finding,) = judge(job, "fabric.counters").findings
    name, value = next(iter(grew.items()))
    assert f"mlx5_0:1 of node2: {name} +{value - {'symbol_error': 100, 'link_downed': 3}[name]}" in finding.message


def test_roce_pfc_ecn_for_packets_that_were_repeated(fabric, after, judge):
    job = fabric(after(), after(packet_seq_err=400, local_ack_timeout_err=20), looks=LOOKS)
    assert told(judge, job) == [("roce-pfc-ecn", "warning", *NODE2)]


def test_counters_that_could_not_be_read_again_are_not_checked(fabric, read, judge):
    hanging = grown(read([roce()]), Missing(reason="the counters did not answer"))
    said = judge(fabric(hanging, read([roce(address="10.1.0.2")]), looks=LOOKS), "fabric.counters")
    gaps = [(n.nodes, n.required) for n in said.not_checked if n.reason == "the counters did not answer"]
    assert gaps == [(("node1",), False)] * 2
