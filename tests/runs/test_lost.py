"""Where a process looks for rank 0 if MASTER_ADDR does not lead there."""

from __future__ import annotations

import asyncio

import pytest

from distcheck.rollcall import identity, resolution
from distcheck.run import lost

MPIRUN = "1259601920.0;tcp://10.77.0.11,10.78.0.11:33845"


def step(nodes, number):
    return {"SLURM_STEP_NODELIST": nodes, "SLURM_NODEID": str(number)}


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({}, ()),
        ({"RANK": "1", "MASTER_ADDR": "node1"}, ()),
        (step("node[1-4]", 2), ("node1", "node4")),
        (step("node[1-4]", 0), ("node1", "node2", "node3")),
        (step("node3,node[1-2]", 1), ("node3", "node2")),
        (step("node[1-4]", 2) | {"SLURM_LAUNCH_NODE_IPADDR": "10.77.0.11"}, ("node1", "10.77.0.11", "node4")),
        ({"SLURM_JOB_NODELIST": "node[1-2]"}, ("node1", "node2")),
        ({"OMPI_MCA_orte_hnp_uri": MPIRUN}, ("10.77.0.11", "10.78.0.11")),
        ({"OMPI_MCA_orte_hnp_uri": "nothing of the kind"}, ()),
        (step("node[1-", 1), ()),
        (step("node1", 0), ("node1",)),
    ],
)
def test_the_hosts_named_by_the_launcher_are_tried(environ, hosts):
    assert lost.to_ask(environ) == hosts


def test_of_a_large_step_few_nodes_are_asked_and_all_lie_within_some_steps_of_each_other():
    size = 5000
    asked = {n: [int(h[1:]) for h in lost.to_ask(step(f"n[0-{size - 1}]", n))] for n in range(0, size, 97)}
    assert max(map(len, asked.values())) == 8
    assert all(hosts[0] == 0 for hosts in asked.values())
    assert asked[97][1:4] == [98, 99, 101]


async def test_a_process_that_reaches_rank_0_within_a_second_tries_no_other_host(monkeypatch):
    async def resolve(*_):
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(resolution, "resolve", resolve)

    leads = []
    seeking = asyncio.ensure_future(lost.seek(leads, step("node[1-4]", 2), "a job", ()))
    await asyncio.sleep(0.5)
    seeking.cancel()
    assert leads == []


async def test_known_addresses_are_not_asked_again(monkeypatch):
    monkeypatch.setattr(lost, "_LOST_AFTER_SECONDS", 0.0)

    leads = []
    environ = {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.9", "SLURM_STEP_NODELIST": "127.0.0.8"}
    await lost.seek(leads, environ, "a job", ("127.0.0.8",))
    ports = identity.side_ports("a job")
    assert [(d.address, d.port, d.found) for d in leads] == [
        (address, port, found) for address, found in (("127.0.0.1", "node"), ("127.0.0.9", "job")) for port in ports
    ]
    assert all(d.side for d in leads)
