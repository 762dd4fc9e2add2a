"""What MPI's and DeepSpeed's launchers carry to other nodes, and where they put the ranks."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

OURS = ("launchers.mpi", *CONTRACT, "gpu.mapping")
ALL = ("environment", "meeting", "gpu")
MPI = ["openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod"]


@pytest.fixture
def deepspeed(job_of, change):
    """Return a job as DeepSpeed's own launcher starts it."""

    def job(per_node=(2, 2), gpus=0):
        made, at = job_of(per_node=per_node, gpus=gpus, looks=ALL), 0
        for node, here in enumerate(per_node):
            own = {"CROSS_RANK": str(node), "CROSS_SIZE": str(len(per_node)), "LOCAL_SIZE": str(here)}
            made = change.environment(made, tuple(range(at, at + here)), **own)
            at += here
        return made

    return job


@pytest.mark.parametrize("launcher", MPI)
@pytest.mark.parametrize("shape", [(1,), (2,), (2, 2), (5, 1, 1, 1)])
def test_a_healthy_mpi_job_is_silent(job_of, change, silent, launcher, shape):
    job = job_of(per_node=shape, launcher=launcher, gpus=8, looks=ALL)
    assert silent(change.environment(job, None, NCCL_SOCKET_IFNAME="eth0", UCX_NET_DEVICES="mlx5_0:1"))


@pytest.mark.parametrize("shape", [(2,), (2, 2), (8, 8)])
def test_a_healthy_deepspeed_job_is_silent(deepspeed, change, silent, shape):
    job = deepspeed(shape, gpus=8)
    assert {r.placement.launcher for r in job.ranks} == {"deepspeed"}
    assert silent(change.environment(job, None, NCCL_SOCKET_IFNAME="eth0"))


# -- mpi-env-not-forwarded and deepspeed-env-not-forwarded


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("openmpi", "# add to mpirun: -x GLOO_SOCKET_IFNAME=eth0 -x NCCL_SOCKET_IFNAME=eth0"),
        ("hydra", "# add to mpiexec: -genv GLOO_SOCKET_IFNAME eth0 -genv NCCL_SOCKET_IFNAME eth0"),
        ("horovod", "export GLOO_SOCKET_IFNAME=eth0"),
    ],
)
def test_variables_set_on_one_node_only_are_a_warning_that_names_the_others(job_of, change, only, launcher, command):
    job = job_of(nodes=3, launcher=launcher, looks=ALL)
    finding, exit_code = only(change.environment(job, (0, 1), NCCL_SOCKET_IFNAME="eth0", GLOO_SOCKET_IFNAME="eth0"))
    assert (finding.rule, finding.severity, exit_code) == ("mpi-env-not-forwarded", "warning", 0)
    assert (finding.ranks, finding.nodes) == ((2, 3, 4, 5), ("node2", "node3"))
    assert "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are not set, but set on node1" in finding.message
    assert finding.fix.commands[0] == command


def test_variables_that_deepspeed_does_not_forward_are_a_warning(deepspeed, change, only):
    finding, exit_code = only(change.environment(deepspeed(), (0, 1), GLOO_SOCKET_IFNAME="eth0", NCCL_ALGO="a;b c"))
    assert (finding.rule, finding.severity, exit_code) == ("deepspeed-env-not-forwarded", "warning", 0)
    assert finding.ranks == (2, 3)
    lines = ("GLOO_SOCKET_IFNAME=eth0", "'NCCL_ALGO=a;b c'")
    assert finding.fix.commands == tuple(f"echo {line} >> ~/.deepspeed_env" for line in lines)


def test_a_value_that_a_shell_would_split_is_quoted(job_of, change, only):
    job = change.environment(job_of(nodes=2, launcher="horovod", looks=ALL), (0, 1), NCCL_ALGO="a;b c")
    assert only(job)[0].fix.commands == ("export NCCL_ALGO='a;b c'",)


def test_variables_set_on_one_rank_on_purpose_are_silent(job_of, change, silent):
    job = job_of(nodes=2, launcher="openmpi", looks=ALL)
    assert silent(change.environment(job, (0, 1), NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl"))
    assert silent(change.environment(job, 0, NCCL_SOCKET_IFNAME="eth0"))
    assert silent(change.environment(job, (0, 1), OMP_NUM_THREADS="4"))


@pytest.mark.parametrize("launcher", ["by hand", "slurm", "torchrun", "distcheck"])
def test_other_launchers_are_silent(job_of, change, judge, launcher):
    job = change.environment(job_of(nodes=2, launcher=launcher), (0, 1), NCCL_SOCKET_IFNAME="eth0")
    assert not any(f.rule.startswith(("mpi-", "deepspeed-")) for f in judge(job).findings)


# -- deepspeed-hostfile-slots


def test_slots_that_leave_gpus_idle_are_a_warning(deepspeed, only):
    finding, exit_code = only(deepspeed((8, 2), gpus=8))
    assert (finding.rule, finding.severity, exit_code) == ("deepspeed-hostfile-slots", "warning", 0)
    assert finding.nodes == ("node2",)
    assert "node2 runs 2 for 8 GPUs; other nodes run 8 ranks" in finding.message
    assert finding.fix.commands == ("sed -i 's/^node2 .*/node2 slots=8/' hostfile",)


def test_nodes_of_unequal_size_that_are_full_are_silent(deepspeed, change, silent):
    job = deepspeed((8, 2), gpus=8)
    gpus = job.nodes[1].gpus
    job = change.node(job, 1, gpus=change.job(gpus, devices=gpus.devices[:2]))
    assert silent(change.rank(job, (8, 9), visible_gpus=("GPU-2-0", "GPU-2-1")))


def test_an_uneven_job_of_another_launcher_is_silent(job_of, rules):
    assert rules(job_of(per_node=(8, 2), gpus=8, looks=ALL, launcher="openmpi")) == []


# -- mpi-slots-all-on-one-host


@pytest.mark.parametrize("variable", ["SLURM_JOB_NUM_NODES", "PBS_NUM_NODES", "NHOSTS"])
def test_all_ranks_on_one_of_several_nodes_is_the_only_error_with_too_few_gpus(job_of, change, only, variable):
    job = job_of(nodes=1, per_node=8, gpus=4, launcher="openmpi", looks=ALL)
    finding, exit_code = only(change.environment(job, None, **{variable: "2"}))
    assert (finding.rule, finding.severity, exit_code) == ("mpi-slots-all-on-one-host", "error", 30)
    assert "all 8 ranks run on node1, which has 4 GPUs; the job has 2 nodes" in finding.message
    assert finding.fix.commands == ("# add to mpirun: --map-by ppr:4:node", "# add to mpiexec: -ppn 4")


def test_all_ranks_on_one_of_several_nodes_is_an_info_with_enough_gpus(job_of, change, only):
    job = job_of(nodes=1, per_node=4, gpus=4, launcher="hydra", looks=ALL)
    finding, exit_code = only(change.environment(job, None, PBS_NUM_NODES="2"))
    assert (finding.rule, finding.severity, exit_code) == ("mpi-slots-all-on-one-host", "info", 0)


def test_too_many_ranks_on_the_only_node_are_out_of_range(job_of, rules):
    job = job_of(nodes=1, per_node=8, gpus=4, launcher="openmpi", looks=ALL)
    assert rules(job) == ["env-local-rank-out-of-range"]
