"""Ranks on GPUs that the scheduler did not give to the job."""

from __future__ import annotations

import pytest

from distcheck.facts.pci import Pci, PciPlace
from distcheck.selection.visible_devices import device_of, visible

PLACE = PciPlace((), 0)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_ID": "0"}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def on(job_of, change):
    """Return a job on nodes that show eight GPUs; each rank takes cuda:LOCAL_RANK of its CUDA_VISIBLE_DEVICES."""

    def on(value, *, nodes=1, ranks=2, gpus=8, hidden=0, **variables):
        job = job_of(nodes, ranks, looks=("environment", "meeting", "gpu"), gpus=gpus)
        job = change.environment(job, None, CUDA_VISIBLE_DEVICES=value, **variables)
        for n, node in enumerate(job.nodes):
            bus = {gpu.pci: PLACE for gpu in node.gpus.devices} | {f"0000:f{i}:00.0": PLACE for i in range(hidden)}
            job = change.node(job, n, pci=Pci(bus, ()))
        for i, rank in enumerate(job.ranks):
            seen = visible(value, job.node_of(rank).gpus.devices).uuids
            own = device_of(rank.placement.local_rank, seen)
            job = change.rank(job, i, visible_gpus=seen, gpu=own)
        return job

    return on


@pytest.fixture
def told(judge):
    return lambda job: [(f.severity, f.ranks, f.nodes) for f in judge(job, "gpu.allocation").findings]


def test_a_rank_on_a_gpu_that_slurm_gave_to_another_job_is_named(on, judge):
    said = judge(on("0,2", SLURM_STEP_GPUS="0,1", **SLURM), "gpu.allocation")
    (found,) = said.findings
    assert (found.rule, found.severity, found.ranks, said.verdict.exit_code) == (
        "gpu-outside-allocation", "error", (1,), 30,
    )  # fmt: skip
    assert found.message.startswith("rank 1 (node1 pid 101) uses GPU 2, which may belong to another job; ")
    assert found.message.endswith("SLURM_STEP_GPUS gives this one GPUs 0-1 of 8")
    assert found.fix.commands == ("export CUDA_VISIBLE_DEVICES=0,1",)


def test_without_the_variable_ranks_take_the_first_gpus_of_the_node(on, told):
    assert told(on(None, SLURM_STEP_GPUS="4,5", **SLURM)) == [("error", (0, 1), ("node1",))]


def test_the_same_fault_on_several_nodes_is_one_finding(on, judge):
    (found,) = judge(on("2,3", nodes=2, SLURM_STEP_GPUS="0,1", **SLURM), "gpu.allocation").findings
    assert (found.ranks, found.nodes) == ((0, 1, 2, 3), ("node1", "node2"))
    assert "use GPUs 2-3, which" in found.message


def test_a_uuid_is_looked_up_for_slurms_numbers(on, told):
    assert told(on("GPU-1-0,GPU-1-7", SLURM_STEP_GPUS="0,1", **SLURM)) == [("error", (1,), ("node1",))]
    assert told(on("GPU-1-1,GPU-1-0", SLURM_STEP_GPUS="0,1", **SLURM)) == []


def test_a_pod_that_sees_all_gpus_keeps_to_those_of_its_device_plugin(on, told):
    given = {"NVIDIA_VISIBLE_DEVICES": "GPU-1-2,GPU-1-3", **PODS}
    assert told(on(None, **given)) == [("error", (0, 1), ("node1",))]
    assert told(on("2,3", **given)) == []


@pytest.mark.parametrize("given", ["all", "void", "none", "/var/run/nvidia-container-devices", "0", ""])
def test_what_names_no_gpu_of_the_device_plugin_gives_none(on, told, given):
    assert told(on(None, NVIDIA_VISIBLE_DEVICES=given, **PODS)) == []
    assert told(on(None, NVIDIA_VISIBLE_DEVICES="GPU-1-5")) == []


def test_what_a_job_of_pbs_or_lsf_began_with_may_be_the_users_own(on, change, judge):
    job = change.process(on("0,2"), None, given_devices="0,1")
    (found,) = judge(job, "gpu.allocation").findings
    assert (found.severity, found.ranks) == ("warning", (1,))
    assert "the CUDA_VISIBLE_DEVICES with which it began gives this one GPUs 0-1 of 8" in found.message
    assert judge(change.process(on("0,2"), None, given_devices="0,2"), "gpu.allocation").findings == ()


@pytest.mark.parametrize(
    ("value", "more"),
    [
        ("4,5", {"SLURM_STEP_GPUS": "4,5"}),
        ("5,4", {"SLURM_STEP_GPUS": "4,5"}),
        ("4,5,6", {"SLURM_STEP_GPUS": "4,5"}),  # no rank takes the third
        (None, {"SLURM_STEP_GPUS": "0,1"}),
        ("2,3", {"SLURM_STEP_GPUS": "0,1", "SLURM_JOB_GPUS": "0,1,2,3"}),  # in the job, though not in its step
        ("2,3", {}),
        ("0,1", {"SLURM_STEP_GPUS": "4,5", "gpus": 2, "hidden": 6}),  # a device cgroup numbers them from 0
        ("0,1", {"SLURM_STEP_GPUS": "4,5", "gpus": 4, "hidden": 4}),
        ("0,1", {"SLURM_STEP_GPUS": "NoDevFiles"}),
        ("2,3", {"SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}),
    ],
    ids=str,
)
def test_ranks_on_gpus_of_the_job_are_silent(on, told, value, more):
    assert told(on(value, **(SLURM | more))) == []


def test_the_list_of_the_batch_script_does_not_hold_on_other_nodes(on, change, told):
    job = on("2,3", nodes=2, SLURM_JOB_GPUS="0,1", **SLURM)
    assert told(job) == [("error", (0, 1), ("node1",))]
    job = change.environment(job, (2, 3), SLURM_STEP_GPUS="2,3")
    assert told(job) == [("error", (0, 1), ("node1",))]


def test_tasks_with_lists_of_their_own_share_those_of_the_node(on, change, told):
    job = on("0,1", SLURM_STEP_GPUS="0", **SLURM)
    assert told(change.environment(job, 1, SLURM_STEP_GPUS="1")) == []


def test_a_part_of_the_gpus_and_divided_ones_have_other_numbers(on, change, gpus, told):
    job = on("2,3", SLURM_STEP_GPUS="0,1", **SLURM)
    assert told(change.process(job, 0, gpus=job.nodes[0].gpus)) == []
    assert told(change.node(job, 0, pci=None)) == []
    assert told(gpus(job, each=lambda gpu: {} if gpu.index else {"mig": True, "mig_uuids": ("MIG-1",)})) == []
    assert told(change.asked(job, backend="gloo")) == []
