"""What Slurm starts, and what it gives to each task."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

from distcheck.facts.network import Interface, Resolution
from distcheck.facts.placement import Placement

OURS = ("launchers.slurm", *CONTRACT, "gpu.mapping")
ALL = ("environment", "meeting", "gpu")


@pytest.fixture
def tasks(job_of, change):
    """Return a job of srun's with what Slurm 22.05 says of its step; `variables` go to every rank."""

    def job(nodes=2, per_node=2, gpus=0, **variables):
        made = job_of(nodes=nodes, per_node=per_node, launcher="slurm", gpus=gpus, looks=ALL)
        shape = ",".join(str(len(made.ranks_on(node))) for node in made.nodes)
        return change.environment(made, None, SLURM_STEP_TASKS_PER_NODE=shape, **variables)

    return job


@pytest.mark.parametrize("shape", [(1,), (2,), (8,), (2, 2), (5, 1, 1, 1), (8, 8, 8)])
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_healthy_step_of_any_shape_is_silent(tasks, change, silent, shape, gpus):
    job = tasks(len(shape), shape, gpus, SLURM_CPUS_PER_TASK="4", SLURMD_NODENAME="node1")
    assert silent(change.node(change.rank(job, None, cpus=4), None, cpus=64))


def test_a_healthy_step_with_a_gpu_for_each_task_is_silent(tasks, silent):
    assert silent(tasks(2, 4, 4, SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="0,1,2,3"))


# -- slurm-no-srun


@pytest.fixture
def batch(job_of, change):
    """Return what `distcheck gate -- PROGRAM` sees in a batch script: its own two ranks, started by distcheck."""

    def job(program, *, tasks="4", nodes="2", batch_shell=True):
        healthy = job_of(nodes=1, launcher="distcheck", looks=ALL, program=program, batch_shell=batch_shell)
        slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": tasks, "SLURM_JOB_NUM_NODES": nodes}
        made = change.environment(healthy, None, **slurm)
        for i, rank in enumerate(healthy.ranks):
            made = change.rank(made, i, placement=rank.placement)
        return made

    return job


def test_a_batch_shell_with_the_variables_of_a_task_is_the_only_error(job_of, change, judge):
    job = change.keep(job_of(nodes=2), 0)
    job = change.environment(job, 0, SLURM_JOB_ID="77", SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_JOB_NUM_NODES="2")
    diagnosis = judge(job, *OURS)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity, finding.ranks) == ("slurm-no-srun", "error", (0,))
    assert diagnosis.verdict.exit_code == 30
    assert "rank 0 (node1 pid 100) runs in the batch shell of Slurm job 77" in finding.message
    assert "srun python train.py" in finding.fix.commands
    (unknown,) = [n for n in diagnosis.not_checked if n.rule == "env-rank-missing"]
    assert "srun" in unknown.reason


def test_a_batch_shell_that_starts_all_ranks_itself_is_silent(job_of, change, silent):
    job = job_of(nodes=1, per_node=4)
    assert silent(change.environment(job, None, SLURM_JOB_ID="77", SLURM_NTASKS="4", SLURM_JOB_NUM_NODES="1"))


def test_ranks_of_another_world_than_the_allocation_are_only_missing(job_of, change, rules):
    job = change.keep(job_of(nodes=4), 0)
    assert rules(change.environment(job, 0, SLURM_JOB_ID="77", SLURM_NTASKS="2")) == ["env-rank-missing"]


@pytest.mark.parametrize(
    ("program", "allocation", "words"),
    [
        ("python", {}, "only srun starts it on 2 nodes as 4 tasks"),
        ("python3.11", {"nodes": "1"}, "only srun starts it on the node as 4 tasks"),
        ("torchrun", {"tasks": "2"}, "only srun starts it on 2 nodes as 2 tasks"),
        ("accelerate", {"tasks": "1"}, "only srun starts it on 2 nodes"),
    ],
)
def test_a_command_that_needs_srun_is_a_warning(batch, only, program, allocation, words):
    finding, exit_code = only(batch(program, **allocation))
    assert (finding.rule, finding.severity, exit_code) == ("slurm-no-srun", "warning", 0)
    assert words in finding.message
    (command,) = finding.fix.commands
    assert command.startswith("# put srun ")
    assert ("--ntasks-per-node=1" in command) == (not program.startswith("python"))


@pytest.mark.parametrize(
    ("program", "allocation"),
    [
        *((program, {}) for program in ("srun", "mpirun", "bash", "")),
        ("python", {"tasks": "1", "nodes": "1"}),
        ("torchrun", {"tasks": "8", "nodes": "1"}),
        ("python", {"batch_shell": False}),
    ],
)
def test_a_command_that_runs_where_it_should_is_silent(batch, silent, program, allocation):
    assert silent(batch(program, **allocation))


def test_one_torchrun_in_the_batch_shell_of_several_nodes_is_a_warning(job_of, change, only, silent):
    job = job_of(nodes=1, launcher="torchrun")
    job = change.environment(job, None, SLURM_JOB_ID="77", SLURM_JOB_NUM_NODES="2")
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, finding.ranks, exit_code) == ("slurm-no-srun", "warning", (0, 1), 0)
    assert "started only on node1" in finding.message
    assert silent(change.environment(job, None, SLURM_STEP_ID="0"))
    assert silent(change.environment(job, None, SLURM_JOB_NUM_NODES="1"))


# -- slurm-cpus-per-task-not-inherited


def test_tasks_bound_to_fewer_cpus_than_requested_are_a_warning(tasks, change, only):
    finding, _ = only(change.node(change.rank(tasks(SLURM_CPUS_PER_TASK="16"), (2, 3), cpus=1), None, cpus=64))
    assert (finding.rule, finding.severity) == ("slurm-cpus-per-task-not-inherited", "warning")
    assert (finding.ranks, finding.nodes) == ((2, 3), ("node2",))
    assert "CPU affinity allows 1 CPU, but SLURM_CPUS_PER_TASK is 16" in finding.message


@pytest.mark.parametrize(("cpus", "online"), [(16, 64), (32, 64), (2, 2), (None, 64), (1, None)])
def test_tasks_with_their_cpus_or_with_all_of_the_node_are_silent(tasks, change, silent, cpus, online):
    job = change.node(change.rank(tasks(SLURM_CPUS_PER_TASK="16"), None, cpus=cpus), None, cpus=online)
    assert silent(job)


# -- slurm-ntasks-vs-devices


@pytest.mark.parametrize(("here", "severity", "words"), [(2, "warning", "2 tasks"), (1, "info", "1 task")])
def test_gpus_without_a_task_are_reported(tasks, only, here, severity, words):
    job = tasks(2, here, 8, SLURM_GPUS_ON_NODE="8")
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, exit_code) == ("slurm-ntasks-vs-devices", severity, 0)
    assert finding.ranks == tuple(range(2 * here))
    assert f"{words} for 8 GPUs on each node" in finding.message
    gate = f"srun --ntasks-per-node={here} distcheck env --nproc {8 // here}"
    assert finding.fix.commands == ("#SBATCH --ntasks-per-node=8", gate)


def test_tasks_with_several_gpus_of_their_own_are_silent(tasks, change, silent):
    job = tasks(1, 2, 4, SLURM_GPUS_ON_NODE="4")
    assert silent(change.environment(job, None, SLURM_GPUS_PER_TASK="2"))
    assert silent(change.asked(job, backend="gloo"))
    own = change.environment(change.environment(job, 0, CUDA_VISIBLE_DEVICES="0,1"), 1, CUDA_VISIBLE_DEVICES="2,3")
    own = change.rank(change.rank(own, 0, visible_gpus=("GPU-1-0", "GPU-1-1")), 1, visible_gpus=("GPU-1-2", "GPU-1-3"))
    assert silent(change.rank(own, 1, gpu="GPU-1-3"))


# -- slurm-gpus-per-task-hides-gpus and slurm-gpu-bind-no-p2p


@pytest.fixture
def one_each(tasks, change):
    """Return a job in which each task sees its own GPU only: by a number of its own, or all as number 0."""

    def job(numbers="01", **variables):
        made = tasks(2, 2, 2, SLURM_GPUS_ON_NODE="2", SLURM_GPUS_PER_TASK="1", **variables)
        for i in range(4):
            gpu = f"GPU-{i // 2 + 1}-{i % 2}"
            made = change.environment(made, i, CUDA_VISIBLE_DEVICES=numbers[i % 2])
            made = change.rank(made, i, visible_gpus=(gpu,), gpu=gpu)
        return made

    return job


def test_one_gpu_per_task_with_increasing_local_ranks_is_a_warning(one_each, only):
    finding, _ = only(one_each())
    assert "invalid device ordinal" in finding.message
    assert finding.evidence["rank 1"] == "CUDA_VISIBLE_DEVICES 1, LOCAL_RANK 1, sees GPU-1-1"
    assert "export SLURM_GPU_BIND=none" in finding.fix.commands


@pytest.mark.parametrize(
    ("numbers", "local_rank", "backend", "said"),
    [
        ("01", {}, "auto", [("slurm-gpus-per-task-hides-gpus", "warning")]),
        ("01", {"LOCAL_RANK": None}, "auto", [("slurm-gpus-per-task-hides-gpus", "info")]),
        ("01", {"LOCAL_RANK": "0"}, "auto", []),
        ("01", {}, "gloo", []),
        ("00", {"LOCAL_RANK": None}, "auto", [("slurm-gpu-bind-no-p2p", "warning")]),
        ("00", {"LOCAL_RANK": "0"}, "auto", [("slurm-gpu-bind-no-p2p", "warning")]),
        ("00", {}, "auto", [("slurm-gpus-per-task-hides-gpus", "warning")]),
        ("00", {"LOCAL_RANK": "0"}, "gloo", []),
    ],
)
def test_a_gpu_of_its_own_for_each_task(one_each, judge, change, numbers, local_rank, backend, said):
    findings = judge(change.asked(one_each(numbers, **local_rank), backend=backend), "launchers.slurm").findings
    assert [(f.rule, f.severity) for f in findings] == said
    assert {f.ranks for f in findings} <= {(0, 1, 2, 3)}


# -- where to meet: slurm-master-from-wrong-node and slurm-node-order are other rules' aliases


def test_an_empty_master_is_an_error_even_if_one_was_derived(tasks, change, only):
    finding, exit_code = only(change.environment(tasks(SLURM_STEP_NODELIST="node[1-2]"), None, MASTER_ADDR=""))
    assert (finding.rule, finding.severity, exit_code) == ("env-empty-string", "error", 30)


def test_the_fix_is_not_the_first_node_where_rank_0_runs_elsewhere(tasks, change, only):
    job = tasks(SLURM_JOB_NODELIST="node[0-2]", SLURM_STEP_NODELIST="node[1-2]")
    job = change.process(job, 0, master_resolution=Resolution(name="node0", addresses=("10.0.0.9",), seconds=0.1))
    job = change.process(change.environment(job, None, MASTER_ADDR="node0"), None, attempts=())
    job = change.node(job, 0, interfaces=(Interface(name="eth0", address="10.0.0.1", up=True, mtu_bytes=1500),))
    finding, exit_code = only(job)
    assert (finding.rule, finding.aliases, exit_code) == ("env-master-addr-not-rank0-host", ("slurm-node-order",), 30)
    assert finding.fix.commands == ("export MASTER_ADDR=node1",)


def test_options_replace_slurms_variables(tasks, change, silent):
    job, given = tasks(), Placement(master_addr="node1", master_port=29500)
    for i in range(4):
        job = change.environment(job, i, given, MASTER_ADDR=None, MASTER_PORT=None)
    assert silent(job)
