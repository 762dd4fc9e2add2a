"""The batch scripts of the docs, run by Slurm: what a job does with the gate's answer.

Only bad nodes have GPUs here, as far as NVML says: this torch has no NCCL, and nodes without GPUs train with Gloo.
"""

from __future__ import annotations

import re
import shutil
import sys
import time

import pytest
from cluster import batch
from cluster.recipes import RECIPES, Recipes

TRAIN = """\
import os
from distcheck.collectives.postponed import without_meta_kernels
with without_meta_kernels():
    import torch, torch.distributed as dist
names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
for ours, slurms in names.items():
    os.environ.setdefault(ours, os.environ[slurms])
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
node, restarts = os.environ["SLURMD_NODENAME"], os.environ.get("SLURM_RESTART_COUNT", "0")
print(f"trained: sum {int(one)} of {dist.get_world_size()} on {node} restart {restarts}", flush=True)
dist.destroy_process_group()
"""
MINE = """\
import os, sys
missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]
sys.exit(f"not exported: {missing}" if missing else 0)
"""


@pytest.fixture
def recipes(cluster, fake_nvml):
    return Recipes(cluster, fake_nvml.folder)


class Job:
    """A batch job: what it wrote, and how Slurm says that it ended."""

    def __init__(self, cluster, number):
        self._cluster = cluster
        self.number = number

    @property
    def out(self):
        path = self._cluster.shared / f"slurm-{self.number}.out"
        return path.read_text() if path.exists() else ""

    @property
    def story(self):
        """What it wrote and what Slurm's controller says of it, for a test that fails."""
        log = self._cluster.read("head", "/var/log/slurm/slurmctld.log").splitlines()
        return "\n".join([self.out, *(line for line in log if f"JobId={self.number}" in line)])

    def shown(self, name):
        return batch.shown(self._cluster, self.number, name)

    def wait(self, seconds=150.0):
        """Wait for its end; what was requeued starts in 5 s instead of after Slurm's two minutes.

        Not at once: Slurm revokes the credentials of a job's first run by their second, and would refuse the new one.
        """
        end = time.monotonic() + seconds
        hurried = "0"
        while (state := self.shown("JobState")) not in batch.OVER:
            assert time.monotonic() < end, f"{state}: {self.out}"
            restarts = self.shown("Restarts")
            if state == "PENDING" and restarts != hurried and self.shown("ExcNodeList") != "(null)":
                hurried = restarts
                self._cluster.run("head", "scontrol", "update", f"JobId={self.number}", "StartTime=now+5")
            time.sleep(0.3)
        return self

    @property
    def code(self):
        return int(self.shown("ExitCode").partition(":")[0])


@pytest.fixture
def submit(cluster):
    """Submit one of the docs' scripts with a training of ours, and a size of ours on the command line."""
    for name in ("gate.sbatch", "srun_gate.sbatch"):
        shutil.copy(RECIPES / name, cluster.shared)
    (cluster.shared / "train.py").write_text(TRAIN)
    (cluster.shared / "mine.py").write_text(MINE)

    def submit(script, *args, nodes=3, gpus=2, export="ALL", train="train.py"):
        python = f"{sys.prefix}/bin/python"
        ended = cluster.run(
            "node1", "sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=2", f"--gpus-per-node={gpus}",
            f"--export={export}", *args, f"/shared/{script}", python, f"/shared/{train}", cwd="/shared",
        )  # fmt: skip
        assert ended.code == 0, ended
        return Job(cluster, ended.out.strip())

    return submit


def trained(job):
    return sorted(re.findall(r"trained: (.*)", job.out))


def test_a_healthy_job_passes_the_gate_and_trains(submit):
    job = submit("gate.sbatch", nodes=2).wait()
    assert (job.code, trained(job)) == (
        0,
        [f"sum 4 of 4 on node{n} restart 0" for n in (1, 2) for _ in range(2)],
    ), job.story


@pytest.mark.slow
def test_a_job_on_a_bad_node_starts_again_without_it(cluster, recipes, submit):
    recipes.nvml("node2", "1.lost yes\n")
    job = submit("gate.sbatch").wait()
    assert (job.code, trained(job)) == (
        0,
        [f"sum 6 of 6 on node{n} restart 1" for n in (1, 3, 4) for _ in range(2)],
    ), job.story
    assert job.shown("ExcNodeList") == "node2"
    assert (cluster.shared / f"bad-nodes.{job.number}").read_text() == ""


@pytest.mark.slow
def test_a_job_whose_second_nodes_are_bad_too_stops(recipes, submit):
    recipes.nvml("node1", "1.lost yes\n")
    recipes.nvml("node2", "1.lost yes\n")
    job = submit("gate.sbatch", nodes=1).wait()
    assert (job.code, job.shown("Restarts"), trained(job)) == (40, "1", []), job.story
    # A report begins and ends with its verdict.
    assert job.out.count("Exclude node1 and restart") == job.out.count("Exclude node2 and restart") == 2


@pytest.mark.slow
def test_a_job_that_is_wrong_itself_stops_at_once(submit):
    job = submit("gate.sbatch", export="ALL,DISTCHECK_BACKEND=nccl", gpus=0).wait()
    assert (job.code, job.shown("Restarts"), trained(job)) == (30, "0", []), job.story
    assert "gpu-none-visible" in job.out
    assert job.out.count("distcheck 0.1.0 gate:") == 1


@pytest.mark.slow
def test_what_is_not_known_is_looked_at_once_more(recipes, submit):
    recipes.nvml("node2", "init !999\n")
    job = submit("gate.sbatch", nodes=2).wait()
    assert (job.code, job.shown("Restarts"), trained(job)) == (20, "0", []), job.story
    assert job.out.count("distcheck 0.1.0 gate:") == 2


@pytest.mark.slow
def test_every_task_looks_and_becomes_its_rank(submit):
    job = submit("srun_gate.sbatch").wait()
    assert (job.code, trained(job)) == (
        0,
        [f"sum 6 of 6 on node{n} restart 0" for n in (1, 2, 3) for _ in range(2)],
    ), job.story
    job = submit("srun_gate.sbatch", train="mine.py").wait()
    assert job.code == 0, job.story


def test_no_task_becomes_a_rank_on_a_bad_node(recipes, submit):
    recipes.nvml("node2", "1.lost yes\n")
    job = submit("srun_gate.sbatch").wait()
    assert (job.code, trained(job)) == (40, []), job.story
