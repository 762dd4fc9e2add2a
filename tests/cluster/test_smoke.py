"""distcheck on real nodes: a healthy job is healthy."""

from __future__ import annotations

import pytest
from cluster.inside import MASTER, mapped


@pytest.mark.parametrize(
    "command", [["env"], ["gate", "--sizes", "1M:1M", "--op", "all_reduce"]], ids=lambda command: command[0]
)
def test_a_healthy_job_of_four_nodes_is_healthy(cluster, command):
    tasks = mapped("SLURM_", "PROCID NTASKS LOCALID", "distcheck", *command, "--format", "json")
    ended = cluster.run("node1", "srun", "--nodes=4", "--ntasks-per-node=2", *tasks, env=MASTER)
    assert (ended.code, ended.rules) == (0, []), ended
    assert {row["rank"]: row["node"] for row in ended.report["ranks"]} == {
        0: "node1", 1: "node1", 2: "node2", 3: "node2", 4: "node3", 5: "node3", 6: "node4", 7: "node4",
    }  # fmt: skip
    assert {row["status"] for row in ended.report["ranks"]} == {"ok"}
