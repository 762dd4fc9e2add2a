"""A job leaves out the checks of Prolog and Epilog by its comment; the docs' job_submit.lua says who may."""

from __future__ import annotations

import pytest
from cluster.recipes import RECIPES, Recipes
from real.waiting import until


@pytest.fixture
def bad_node(cluster, fake_nvml):
    """Every node has the docs' Prolog and Epilog; node2 has a lost GPU. slurmctld asks the docs' job_submit.lua."""
    recipes = Recipes(cluster, fake_nvml.folder)
    recipes.everywhere()
    recipes.nvml("node2", "1.lost yes\n")
    script = (RECIPES / "job_submit.lua").read_text()
    cluster.write("head", "/etc/slurm/job_submit.lua", script.replace("most_nodes = 16", "most_nodes = 1"))
    cluster.slurm(Prolog="/etc/slurm/prolog.sh", Epilog="/etc/slurm/prolog.sh", JobSubmitPlugins="lua")
    return recipes


def test_a_job_leaves_out_the_check_and_others_do_not(cluster, bad_node):
    def job(*words):
        return cluster.run("node1", "srun", "--nodelist=node2", "--gpus-per-node=1", *words, "hostname")

    assert (job("--comment=mine nodistcheck").code, bad_node.state("node2")[1]) == (0, "none")
    assert cluster.run("node2", "test", "-e", "/run/distcheck/prolog.json").code == 1
    many = cluster.run("node1", "srun", "--nodes=2", "--comment=nodistcheck", "hostname")
    assert many.code != 0
    assert "--comment=nodistcheck is allowed up to 1 nodes" in many.err
    assert cluster.run("node1", "srun", "--nodelist=node2", "hostname").code == 0, "it wants no GPU"
    assert bad_node.state("node2")[1] == "none"
    assert job("--comment=nodistchecks").code != 0
    assert until(lambda: bad_node.drained("node2"))[1] == "Prolog error"
