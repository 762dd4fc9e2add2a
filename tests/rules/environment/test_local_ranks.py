"""The ranks of each node: numbered from 0, one per GPU, and consecutive."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

from distcheck.facts.gpu import Gpus
from distcheck.selection.visible_devices import device_of, visible

OURS = CONTRACT


@pytest.fixture
def shown(change):
    """Give ranks variables (None unsets), and the GPUs that they then see and take."""

    def shown(job, where=None, **variables):
        job = change.environment(job, where, **variables)
        for i, rank in enumerate(job.ranks):
            gpus = job.node_of(rank).gpus
            if isinstance(gpus, Gpus):
                seen = visible(rank.environment.get("CUDA_VISIBLE_DEVICES"), gpus.devices)
                device = device_of(rank.placement.local_rank, seen.uuids)
                job = change.rank(job, i, visible_gpus=seen.uuids, gpu=device)
        return job

    return shown


@pytest.fixture
def of(job_of):
    """Build a job whose GPUs were looked at."""
    looks = ("environment", "meeting", "gpu")
    return lambda nodes=1, per_node=2, gpus=2, **more: job_of(nodes, per_node, looks=looks, gpus=gpus, **more)


def test_an_unset_local_rank_is_a_warning_only_with_gpus(job_of, change, only, silent):
    job = change.environment(job_of(gpus=2), 1, LOCAL_RANK=None)
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, finding.ranks, exit_code) == ("env-local-rank-unset", "warning", (1,), 0)
    assert silent(change.asked(job, backend="gloo"))
    assert silent(change.environment(job_of(), 1, LOCAL_RANK=None))
    finding, _ = only(change.environment(job_of(gpus=2, launcher="slurm"), None, LOCAL_RANK=None))
    assert (finding.severity, finding.fix.commands) == ("info", ("export LOCAL_RANK=$SLURM_LOCALID",))


def test_the_local_ranks_of_a_node_are_compared_without_gpus_too(job_of, change, only, silent):
    finding, exit_code = only(change.environment(job_of(nodes=2), 3, LOCAL_RANK="0"))
    assert (finding.rule, finding.ranks, exit_code) == ("env-local-rank-duplicate", (2, 3), 30)
    job = change.environment(change.environment(job_of(nodes=2), 2, LOCAL_RANK="2"), 3, LOCAL_RANK="3")
    finding, exit_code = only(job)
    assert (finding.rule, finding.nodes, exit_code) == ("env-local-rank-out-of-range", ("node2",), 30)
    assert "it holds the global rank" in finding.message
    assert silent(change.asked(job, backend="gloo"))


@pytest.mark.parametrize(
    ("job", "each"),
    [
        ({"gpus": 8}, [{"LOCAL_RANK": "6", "LOCAL_WORLD_SIZE": None}, {"LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": None}]),
        ({}, [{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}, {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}]),
        (
            {"per_node": 4, "launcher": "torchrun"},
            [{"LOCAL_RANK": str(n % 2), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(n // 2)} for n in range(4)],
        ),
    ],
    ids=["each has a GPU", "each sees another GPU", "two agents on one host"],
)
def test_local_ranks_that_fit_in_another_way_are_silent(job_of, change, silent, job, each):
    made = job_of(**job)
    for position, variables in enumerate(each):
        made = change.environment(made, position, **variables)
    assert silent(made)


# -- a LOCAL_RANK without a GPU


@pytest.mark.parametrize("launcher", ["by hand", "torchrun", "openmpi", "distcheck"])
def test_a_visible_devices_list_shorter_than_the_ranks_is_an_error(of, shown, only, launcher):
    finding, exit_code = only(shown(of(1, 4, 8, launcher=launcher), CUDA_VISIBLE_DEVICES="0,1"), "gpu.mapping")
    assert (finding.rule, finding.severity, finding.scope) == ("env-local-rank-out-of-range", "error", "rank")
    assert (finding.ranks, finding.nodes, exit_code) == ((2, 3), ("node1",), 30)
    assert finding.message == (
        "ranks 2-3 (node1) have LOCAL_RANK 2-3 and see 2 GPUs, with CUDA_VISIBLE_DEVICES='0,1': "
        "cuda:LOCAL_RANK fails with CUDA error: invalid device ordinal"
    )
    assert "export CUDA_VISIBLE_DEVICES=0,1,2,3" in finding.fix.commands
    assert finding.evidence == {
        "LOCAL_RANK": "2-3", "CUDA_VISIBLE_DEVICES": "0,1", "gpus_seen": 2, "gpus_on_node": 8, "ranks_on_node": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("job", "each", "severity", "ranks", "words", "commands"),
    [
        ({"per_node": 9, "gpus": 8}, {}, "error", (8,), "rank 8 (node1 pid 108) has LOCAL_RANK 8 and sees 8 GPUs: ",
         ("export PET_NPROC_PER_NODE=8",)),
        ({"nodes": 2, "per_node": 4, "launcher": "slurm"}, {}, "error", (2, 3, 6, 7), "cuda:LOCAL_RANK fails",
         ("#SBATCH --ntasks-per-node=2", "#SBATCH --gpus-per-node=4")),
        ({"per_node": 4, "gpus": 8, "launcher": "slurm"},
         {n: {"CUDA_VISIBLE_DEVICES": f"{2 * n},{2 * n + 1}"} for n in range(4)}, "info", (2, 3), "", None),
        ({"nodes": 2, "per_node": 4, "gpus": 4}, {4: {"LOCAL_RANK": "4"}, 5: {"LOCAL_RANK": "5"}}, "error", (4, 5),
         "have LOCAL_RANK 4-5; expected 0 to 3; it holds the global rank", ("export LOCAL_RANK=$((${RANK:?} % 4))",)),
        ({"per_node": 1, "gpus": 1}, {0: {"LOCAL_RANK": "3"}}, "error", (0,), "has LOCAL_RANK 3; expected 0",
         ("export LOCAL_RANK=0",)),
    ],
    ids=["more ranks than GPUs", "under Slurm", "GPUs of their own", "reported once", "alone on its node"],
)  # fmt: skip
def test_local_ranks_without_a_gpu_are_out_of_range(of, shown, only, job, each, severity, ranks, words, commands):
    made = shown(of(**job))
    for position, variables in each.items():
        made = shown(made, position, **variables)
    finding, exit_code = only(made, "gpu.mapping")
    assert (finding.rule, finding.severity, finding.ranks) == ("env-local-rank-out-of-range", severity, ranks)
    assert exit_code == (30 if severity == "error" else 0)
    assert words in finding.message
    assert commands in {None, finding.fix.commands}


def test_a_local_rank_beyond_enough_gpus_is_fixed_by_renumbering(of, shown, judge):
    job = shown(shown(of(1, 2, 4), LOCAL_WORLD_SIZE="8"), 1, LOCAL_RANK="5")
    finding = next(f for f in judge(job, *OURS, "gpu.mapping").findings if f.rule == "env-local-rank-out-of-range")
    assert (finding.ranks, finding.fix.commands) == ((1,), ("export LOCAL_RANK=$((${RANK:?} % 2))",))


def test_a_lost_gpu_is_reported_instead_of_the_rank(of, shown, judge, change):
    job = of(1, 4, 4)
    devices = list(job.nodes[0].gpus.devices)
    devices[3] = change.job(devices[3], lost="NVML error 15: a GPU is lost")
    job = shown(change.node(job, 0, gpus=change.job(job.nodes[0].gpus, devices=tuple(devices))))
    assert job.ranks[3].gpu is None
    assert [f.rule for f in judge(job, *OURS, "gpu.mapping").findings] == ["gpu-fell-off-bus"]


@pytest.mark.parametrize("value", ["0,1,-1,2", "0 1,2", "0,1,9,2", "GPU-1-0,GPU-1-1,GPU-x"])
def test_a_wrong_visible_devices_list_is_reported_instead_of_the_rank(of, shown, judge, value):
    job = shown(of(1, 4, 4), CUDA_VISIBLE_DEVICES=value)
    assert None in {rank.gpu for rank in job.ranks}
    (finding,) = judge(job, *OURS, "gpu.mapping").findings
    assert (finding.rule[:8], finding.severity) == ("gpu-cvd-", "error")


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_without_nccl_no_rank_needs_a_gpu(of, shown, silent, backend):
    assert silent(shown(of(1, 9, 8, backend=backend)), "gpu.mapping")


def test_gpu_sharing_allowed_by_nccl_is_an_info(of, shown, only, change):
    finding, exit_code = only(shown(of(1, 4, 2), NCCL_MULTI_RANK_GPU_ENABLE="1"), "gpu.mapping")
    assert (finding.rule, finding.severity, exit_code) == ("env-local-rank-out-of-range", "info", 0)
    assert finding.ranks == (2, 3)
    by_file = change.nccl_file(shown(of(1, 4, 2)), None, "NCCL_MULTI_RANK_GPU_ENABLE=1")
    assert only(by_file, "gpu.mapping") == (finding, exit_code)


# -- one cause, one finding: equal local ranks or one list


@pytest.mark.parametrize(
    ("job", "variables", "rule"),
    [
        ({"per_node": 4, "gpus": 4}, {"LOCAL_RANK": "0"}, "env-local-rank-duplicate"),
        ({"gpus": 1}, {"RANK": "0", "LOCAL_RANK": "0"}, "env-rank-duplicate"),
        (
            {"per_node": 4, "gpus": 1, "launcher": "slurm"},
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            "env-world-size-1-everywhere",
        ),
    ],
)
def test_what_makes_local_ranks_equal_is_the_only_finding(of, shown, only, job, variables, rule):
    assert only(shown(of(1, **job), **variables), "gpu.mapping")[0].rule == rule


def test_equal_local_ranks_are_named_with_their_processes(of, shown, only):
    finding, exit_code = only(shown(of(1, 4, 4), LOCAL_RANK="0"), "gpu.mapping")
    assert (finding.ranks, exit_code) == ((0, 1, 2, 3), 30)
    assert finding.evidence["node1 pid 101"] == "rank 1, local rank 0: python -m distcheck env"


@pytest.mark.parametrize("local_ranks", ["00", "01"])
def test_one_gpu_visible_to_all_ranks_is_the_cause(of, shown, only, local_ranks):
    job = shown(of(1, 2, 4), CUDA_VISIBLE_DEVICES="0")
    for i, number in enumerate(local_ranks):
        job = shown(job, i, LOCAL_RANK=number)
    finding, exit_code = only(job, "gpu.mapping")
    assert (finding.rule, finding.ranks, exit_code) == ("gpu-duplicate", (0, 1), 30)


def test_pairs_with_one_local_rank_that_see_the_same_gpu_are_duplicates(of, shown, judge):
    job = shown(of(1, 4, 4), LOCAL_RANK="0")
    for i in range(4):
        job = shown(job, i, CUDA_VISIBLE_DEVICES=str(i // 2))
    findings = judge(job, *OURS, "gpu.mapping").findings
    assert [(f.rule, f.ranks) for f in findings] == [("gpu-duplicate", (0, 1)), ("gpu-duplicate", (2, 3))]


def test_a_list_that_cuda_misreads_does_not_hide_equal_local_ranks(of, shown, judge):
    job = shown(of(1, 2, 4), LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="0,-1")
    errors = [f.rule for f in judge(job, *OURS, "gpu.mapping").findings if f.severity == "error"]
    assert errors == ["env-local-rank-duplicate"]


# -- the shape of nodes


def test_a_wrong_local_world_size_is_a_warning(job_of, change, only):
    finding, exit_code = only(change.environment(job_of(per_node=(5, 1, 1, 1)), 6, LOCAL_WORLD_SIZE="5"))
    assert (finding.rule, finding.severity, finding.ranks) == ("env-local-world-size-inconsistent", "warning", (6,))
    assert exit_code == 0


def test_consecutive_ranks_on_different_nodes_are_a_warning(job_of, change, only):
    job = job_of(nodes=2, launcher="slurm")
    for position, rank in enumerate(("0", "2", "1", "3")):
        job = change.environment(job, position, RANK=rank, SLURM_PROCID=rank)
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, exit_code) == ("env-rank-order-not-node-major", "warning", 0)
    assert finding.evidence == {"node1": "ranks 0,2", "node2": "ranks 1,3"}
    assert finding.fix.commands == ("export SLURM_DISTRIBUTION=block:block",)
