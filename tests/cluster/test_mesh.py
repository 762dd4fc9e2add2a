"""Tensor groups of a real Slurm step: within nodes, over nodes, and dealt to the nodes in turn."""

from __future__ import annotations

import json

import pytest
from cluster.inside import MASTER, finding, findings, mapped


@pytest.fixture
def step(cluster):
    """Return what runs `distcheck env` in a step with these options, after shell commands, and returns its report."""

    def run(options, mesh, *commands, nproc=""):
        env = ("distcheck", "env", "--format", "json", "--mesh", mesh, *(("--nproc", nproc) if nproc else ()))
        task = env if nproc else mapped("SLURM_", "PROCID NTASKS LOCALID", *env)
        script = "\n".join(["set -e", *commands, f'exec srun {options} "$@"'])
        ended = cluster.run("node1", "bash", "-c", script, "bash", *task, env=MASTER, timeout=90)
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return run


def test_tensor_groups_larger_than_a_node_are_named_with_the_mesh_that_fits(step):
    nodes = "--nodes=4 --ntasks-per-node=1"
    healthy = step(nodes, "dp=4,tp=2", nproc="2")
    assert healthy["findings"] == []
    assert [row["mesh"]["tp"] for row in healthy["ranks"]] == [{"group": n // 2, "rank": n % 2} for n in range(8)]

    (large,) = step(nodes, "dp=2,tp=4", nproc="2")["findings"]
    assert (large["rule"], large["ranks"]) == ("mesh-group-crosses-nodes", list(range(8)))
    assert "ranks 0-3 are on node1 and node2" in large["message"]
    assert "--mesh dp=4,tp=2" in large["fix"]["commands"][0]


def test_ranks_dealt_to_the_nodes_in_turn_are_mended_by_the_command_that_is_shown(step):
    tasks, cyclic = "--nodelist=node1,node2 --ntasks-per-node=2", "export SLURM_DISTRIBUTION=cyclic"
    dealt = finding(step(tasks, "dp=2,tp=2", cyclic), "mesh-rank-order")

    assert "ranks 0-1 are on node1 and node2" in dealt["message"]
    assert findings(step(tasks, "dp=2,tp=2", cyclic, *dealt["fix"]["commands"])) == []
