"""Several tasks of a node that each start a torchrun: together they may start more processes than there are GPUs."""

from __future__ import annotations

import pytest

from distcheck.facts.rank import Agent, Variables

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "4"}


@pytest.fixture
def world(job_of, change):
    """Return what one of several worlds of torchrun --standalone sees on a node with four GPUs."""

    def world(processes=4, tasks="2", *, task="1", gpus=4, nodes=1, **variables):
        job = job_of(nodes, processes, "torchrun", ("environment", "meeting", "gpu"), gpus=gpus, command="gate")
        words = ("--standalone", f"--nproc-per-node={processes}", "train.py")
        job = change.process(job, None, agent=Agent("torchrun", 7, words, Variables({})))
        given = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_LOCALID": task, "SLURM_NTASKS": "2"}
        return change.environment(job, None, **(STEP | given | variables))

    return world


@pytest.fixture
def told(judge):
    return lambda job: [(f.severity, f.ranks, f.nodes) for f in judge(job, "gpu.worlds").findings]


def test_worlds_with_as_many_processes_as_gpus_each_share_them(world, judge):
    said = judge(world(), "gpu.worlds")
    (found,) = said.findings
    assert (found.rule, found.severity, found.ranks, said.verdict.exit_code) == (
        "gpu-worlds-overlap", "error", (0, 1, 2, 3), 30,
    )  # fmt: skip
    words = "each starts torchrun with 4 processes, so 8 processes share 4 GPUs"
    assert found.message == f"srun started 2 tasks on node1; {words}"
    assert found.fix.commands == ("srun --ntasks-per-node=1 torchrun --standalone --nproc-per-node=4 train.py",)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"task": "0"}, "if each starts torchrun with 4 processes, as this one did, 8 processes share 4 GPUs"),
        (
            {"processes": 2},
            "each starts torchrun with 2 processes; if they take cuda:LOCAL_RANK, 4 processes share 2 GPUs",
        ),
    ],
)
def test_worlds_that_may_be_the_only_one_or_take_other_gpus_are_a_warning(world, judge, more, words):
    (found,) = judge(world(**more), "gpu.worlds").findings
    assert (found.severity, found.message) == ("warning", f"srun started 2 tasks on node1; {words}")


def test_mpirun_starts_several_torchruns_too(world, judge):
    mpi = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    job = world(**dict.fromkeys(STEP), **{f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()})
    (found,) = judge(job, "gpu.worlds").findings
    assert found.message.startswith("mpirun started 2 tasks on node1; each starts torchrun with 4 processes")
    assert found.fix.commands[0].startswith("mpirun --map-by ppr:1:node torchrun ")


@pytest.mark.parametrize(
    "more",
    [
        {"tasks": "1", "task": "0"},
        {"processes": 2, "task": "0"},
        {"processes": 2, "gpus": 2, "CUDA_VISIBLE_DEVICES": "2,3"},
        {"SLURM_GPUS_ON_NODE": "8"},
        {"SLURM_PTY_PORT": "4711"},
        {"SLURM_STEP_ID": "4294967290"},
        {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
        {"gpus": 0},
    ],
    ids=str,
)
def test_worlds_for_which_the_gpus_suffice_or_that_are_alone_are_silent(world, told, more):
    assert told(world(**more)) == []


def test_shared_or_divided_gpus_are_meant_to_be_shared(world, change, gpus, told):
    job = world()
    assert told(gpus(job, mps_daemon=True)) == []
    assert told(gpus(job, each=lambda gpu: {"mig": True, "mig_uuids": (f"MIG-{gpu.index}",)})) == []
    assert told(change.asked(job, backend="gloo")) == []


@pytest.fixture
def gated(job_of, change):
    """Return a job of two tasks on a node with four GPUs; each becomes torchrun on a pass."""

    def gated(processes="4", *, launcher="slurm", program="torchrun", own=((0, 1, 2, 3), (0, 1, 2, 3)), tasks=2):
        asked = {"command": "gate", "program": program, "script": "train.py", "processes": processes}
        job = job_of(1, tasks, launcher, ("environment", "meeting", "gpu"), gpus=4, **asked)
        words = ("distcheck", "gate", "--", "torchrun", "--standalone", f"--nproc-per-node={processes}", "train.py")
        job = change.process(job, None, command=("python3", *words))
        for number in range(tasks):
            job = change.rank(job, number, visible_gpus=tuple(f"GPU-1-{gpu}" for gpu in own[number]))
        return job

    return gated


@pytest.mark.parametrize(("launcher", "start"), [("slurm", "srun --ntasks-per-node=1"), ("hydra", "mpiexec -ppn 1")])
@pytest.mark.parametrize("processes", ["4", "gpu", "auto"])
def test_a_gate_in_each_task_starts_a_torchrun_in_each(gated, judge, launcher, start, processes):
    (found,) = judge(gated(processes, launcher=launcher), "gpu.worlds").findings
    assert (found.rule, found.severity, found.ranks) == ("gpu-worlds-overlap", "error", (0, 1))
    assert "each starts COMMAND (torchrun train.py) with 4 processes, so 8 processes share 4 GPUs" in found.message
    gate = f"distcheck gate --nproc 4 -- torchrun --standalone --nproc-per-node={processes} train.py"
    assert found.fix.commands == (f"{start} {gate}",)


def test_gates_that_see_the_same_gpus_start_torchruns_on_the_same_ones(gated, judge):
    (found,) = judge(gated("1"), "gpu.worlds").findings
    assert found.severity == "warning"
    assert "with 1 process; if they take cuda:LOCAL_RANK, 2 processes share 1 GPU" in found.message


@pytest.mark.parametrize(
    "more",
    [
        {"processes": "2", "own": ((0, 1, 2, 3), (2, 3, 0, 1))},
        {"processes": "gpu", "own": ((0, 1), (2, 3))},
        {"processes": ""},
        {"program": "python3", "processes": "1"},
        {"tasks": 1},
    ],
    ids=str,
)
def test_a_gate_whose_torchruns_have_gpus_of_their_own_is_silent(gated, told, more):
    assert told(gated(**more)) == []
