"""The rule about RDMA ports in loopback, on rates of several nodes."""

import msgspec
import pytest
from made.hcas import infiniband

from distcheck.facts.base import Missing

replace = msgspec.structs.replace


@pytest.fixture
def job(fabric, read):
    """Return a job of two nodes with four ports each of 400 Gb/s; `odd` has other rates by node and adapter."""

    def job(usual, odd=()):
        odd, nodes = dict(odd), []
        for number in (1, 2):
            found = read([infiniband(f"mlx5_{i}") for i in range(4)])
            hcas = []
            for hca in found.hcas:
                rate = odd.get((number, hca.name), usual)
                hcas.append(replace(hca, ports=(replace(hca.ports[0], loopback_Gbps=rate),)))
            nodes.append(replace(found, hcas=tuple(hcas)))
        job = fabric(*nodes, looks=("environment", "gpu", "collectives"))
        return replace(job, asked=replace(job.asked, loopback=True))

    return job


def test_healthy_ports_and_ports_that_were_not_measured_are_silent(job, judge):
    for usual in (392.0, 230.0, None):
        said = judge(job(usual), "fabric.loopback")
        assert (said.findings, said.not_checked) == ((), ())


def test_a_port_at_a_third_of_its_rate_is_named_with_both_numbers(job, judge):
    said = judge(job(390.0, {(2, "mlx5_3"): 131.0}), "fabric.loopback")
    (finding,) = said.findings
    assert (finding.rule, finding.ranks, finding.nodes) == ("ib-loopback-slow", (2, 3), ("node2",))
    assert finding.message.startswith("mlx5_3:1 of node2 writes to itself at 131 Gb/s, its rate is 400 Gb/s; the 8 ")
    assert said.verdict.exit_code == 40


def test_ports_that_are_all_slow_blame_no_node(job, judge):
    said = judge(job(150.0, {(2, "mlx5_3"): 131.0}), "fabric.loopback")
    assert [(f.severity, f.scope) for f in said.findings] == [("warning", "job")]


def test_a_port_that_was_asked_for_and_not_measured_is_required(job, judge):
    said = judge(job(390.0, {(1, "mlx5_2"): Missing(reason="ib_write_bw ended with exit code 1")}), "fabric.loopback")
    assert [(n.rule, n.nodes, n.required) for n in said.not_checked] == [("ib-loopback-slow", ("node1",), True)]
    assert "mlx5_2:1 of node1: ib_write_bw ended" in said.not_checked[0].reason
