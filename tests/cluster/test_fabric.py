"""`distcheck net` on nodes with RDMA adapters: a made-up tree of /sys/class/infiniband mounted into each of them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from cluster.inside import NODES, reports
from made import hcas

if TYPE_CHECKING:
    from pathlib import Path

RAILS = [hcas.infiniband(f"mlx5_{n}") for n in range(4)]
_WITH_ADAPTERS = """#!/bin/sh
exec unshare --mount sh -c '
    tree=/shared/$(hostname)
    for path in class/net devices; do mount --rbind /sys/$path $tree/sys/$path || exit; done
    mount --rbind $tree/sys /sys && mount --bind $tree/dev/infiniband /dev/infiniband || exit
    exec "$@"
' sh "$@"
"""
"""The mounts are seen by this one program and what it starts, and are gone with them."""


@pytest.fixture
def net(cluster):
    """Run ``distcheck net`` for two ranks on each node, with these adapters."""

    def net(**adapters: list[hcas.Adapter]):
        _libibverbs(cluster.shared)
        for node in NODES:
            tree = hcas.write(cluster.shared / node, adapters.get(node, RAILS))
            for folder in ("class/net", "devices"):
                (tree / "sys" / folder).mkdir(parents=True)
            assert cluster.run(node, "mkdir", "-p", "/dev/infiniband").code == 0
        script = cluster.shared / "with-adapters"
        script.write_text(_WITH_ADAPTERS)
        script.chmod(0o755)
        srun = ("srun", "--nodes=4", "--ntasks-per-node=1", "/shared/with-adapters")
        look = ("distcheck", "net", "--backend", "nccl", "--nproc", "2", "--format", "json")
        ended = cluster.run("node1", *srun, *look, env={"LD_LIBRARY_PATH": "/shared"}, timeout=150)
        assert ended.out, ended
        (report,) = reports(ended)
        return report

    yield net
    for node in NODES:
        cluster.run(node, "rmdir", "/dev/infiniband")


def _libibverbs(folder: Path) -> None:
    """Make an empty library of that name, which loads wherever the test runs."""
    command = ["cc", "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libibverbs.so.1", "-o", folder / "libibverbs.so.1"]
    subprocess.run(command, check=True)


def test_three_faults_at_once_are_each_named_with_node_and_port(net):
    down = RAILS[1]._replace(state="DOWN", physical="Polling")
    slow = RAILS[2]._replace(rate="200 Gb/sec (2X NDR)")
    report = net(
        node2=[RAILS[0], down, *RAILS[2:]],
        node3=[*RAILS[:2], slow, RAILS[3]],
        node4=[*RAILS[:3], RAILS[3]._replace(file="absent")],
    )
    told = {f["rule"]: (f["severity"], f["ranks"], f["nodes"]) for f in report["findings"] if f["rule"][:3] == "ib-"}
    assert told == {
        "ib-port-down": ("warning", [2, 3], ["node2"]),
        "ib-rate-degraded": ("warning", [4, 5], ["node3"]),
        "ib-device-not-openable": ("warning", [6, 7], ["node4"]),
    }, report["findings"]
    messages = " ".join(f["message"] for f in report["findings"])
    assert "mlx5_1:1 of node2: down (Polling)" in messages
    assert "mlx5_2:1 of node3: 200 Gb/s (2X NDR)" in messages
    assert "node4: 1 of 4 active adapters cannot be opened: mlx5_3 (/dev/infiniband/uverbs3" in messages
    assert len(told) == len([f for f in report["findings"] if f["severity"] != "info"]), report["findings"]
