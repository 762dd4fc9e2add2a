"""MIG devices: what a process sees, how NCCL treats them, and jobs that mix both kinds."""

from __future__ import annotations

import pytest
from made.nvml_jobs import PROFILES, but_guesses

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed

H100, MIG = PROFILES["dgx_h100"], PROFILES["dgx_h100_mig"]
TWO = MIG + "3.1.uuid MIG-10000003-aaaa-bbbb-cccc-dddddddddddd\n"
ENABLE = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def name(gpu: int, part: int = 0) -> str:
    return f"MIG-{{node}}{part}000000{gpu}-aaaa-bbbb-cccc-dddddddddddd"


@pytest.fixture
def judge(judge):
    return but_guesses(judge)


def errors(result):
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in result.findings]


def empty(*gpus):
    """Return a node of eight GPUs; these are in MIG mode without a MIG device."""
    return H100 + "".join(f"{gpu}.mig 1\n{gpu}.mig.slots 7\n" for gpu in gpus)


ALONE = H100 + "7.mig 1\n7.mig.slots 7\n7.0.uuid MIG-00000007-aaaa\n"
SILENT = {
    "an index": ([MIG], ("0",)),
    "a UUID": ([MIG], (name(3),)),
    "unset": ([MIG], (None,)),
    "devices of different GPUs": ([TWO, TWO], (name(2), name(3))),
    "a divided GPU that no rank takes": ([ALONE], ("0,1", "0,1")),
    "each rank gets another GPU than the empty one": ([empty(0)], (None,) * 4),
    "no rank sees the empty one": ([empty(0)], ("1,2,3,4,5,6,7",) * 4),
    "an unknown mode": ([H100 + "0.mig !4\n"], (None,) * 8),
}


@pytest.mark.parametrize("case", SILENT)
def test_ranks_that_get_a_gpu_or_mig_device_each_are_silent(on, judge, case):
    texts, values = SILENT[case]
    assert judge(on(*texts, per_node=len(values), values=values), "gpu.mapping", "gpu.mig").findings == ()


def test_a_process_given_several_mig_devices_sees_one(on, judge):
    job = on(MIG, per_node=1, values=(f"{name(0)},{name(1)}",))
    (finding,) = judge(job).findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-cvd-mig", "warning", (0,))
    assert "names 2 devices, but a process sees only one MIG device: MIG-000000000-aaaa" in finding.message


def test_an_index_of_a_gpu_in_mig_mode_hides_the_others(on, judge):
    job = on(H100 + "1.mig 1\n1.mig.slots 7\n1.0.uuid MIG-00000001-aaaa\n", per_node=1, values=("0,1,2",))
    assert errors(judge(job, "gpu.mig")) == [("gpu-cvd-mig", "warning", (0,), ("node1",))]


def test_ranks_on_one_mig_device_are_only_gpu_duplicate(on, judge):
    both = f"{name(0)},{name(1)}"
    assert [rule for rule, *_ in errors(judge(on(MIG, per_node=2, values=(both, both))))] == ["gpu-duplicate"]


def test_ranks_on_two_mig_devices_of_one_gpu_cannot_connect(on, judge):
    result = judge(on(TWO, per_node=2, values=(name(3), name(3, 1))))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.ranks, finding.nodes) == (
        "gpu-mig-with-nccl", "error", (0, 1), ("node1",),
    )  # fmt: skip
    assert "MIG devices of GPU 3 (0000:61:00.0)" in finding.message
    assert "NCCL version unknown" in finding.message
    assert result.verdict.exit_code == 30


@pytest.mark.parametrize(
    ("nccl", "variables", "severity"),
    [
        ("2.29.7", ENABLE, "error"),
        ("2.30.7", {}, "error"),
        ("2.30.7", ENABLE, "info"),
        ("3.0.1", ENABLE, "info"),
        ("", ENABLE, "warning"),
        ("", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, "error"),
    ],
)
def test_nccl_allows_it_from_2_30_if_configured(on, judge, change, nccl, variables, severity):
    job = on(TWO, per_node=2, values=(name(3), name(3, 1)), **variables)
    installed = Installed(python="3.11.7", prefix="/opt", torch=job.nodes[0].torch, nccl=nccl)
    job = change.process(job, None, installed=installed)
    assert errors(judge(job, "gpu.mapping", "gpu.mig")) == [("gpu-mig-with-nccl", severity, (0, 1), ("node1",))]
    job = change.process(on(TWO, per_node=2, values=(name(3), name(3, 1))), None, installed=installed)
    job = change.nccl_file(job, None, *(f"{name}={value}" for name, value in variables.items()))
    assert errors(judge(job, "gpu.mapping", "gpu.mig")) == [("gpu-mig-with-nccl", severity, (0, 1), ("node1",))]


def test_mig_is_silent_for_gloo(on, judge, change):
    job = change.asked(on(TWO, per_node=2, values=(name(3), name(3, 1))), backend="gloo")
    assert judge(job).findings == ()


def test_mig_mode_left_on_one_node_of_four(on, judge):
    result = judge(on(H100, H100, MIG, H100))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-mig-partial", "error", tuple(range(16, 24)))
    assert (finding.nodes, finding.confirmed) == (("node3",), True)
    assert finding.message == "ranks 16-23 (node3) take MIG devices; the other 24 ranks take whole GPUs"
    assert result.verdict.exit_code == 40


def test_one_node_without_mig_among_nodes_with_mig_is_the_odd_one(on, judge):
    values = tuple(name(i) for i in range(8))
    result = judge(on(MIG, MIG, H100, values=values), "gpu.mig")
    assert errors(result) == []  # its ranks got UUIDs that the node does not have: gpu-cvd-uuid-stale
    job = on(MIG, MIG, H100, per_node=1)
    assert errors(judge(job)) == [("gpu-mig-partial", "error", (2,), ("node3",))]


def test_of_two_nodes_both_are_named_and_none_is_excluded(on, judge):
    result = judge(on(H100, MIG, per_node=1))
    (finding,) = result.findings
    assert (finding.rule, finding.scope, finding.ranks, finding.nodes) == (
        "gpu-mig-partial", "job", (0, 1), ("node1", "node2"),
    )  # fmt: skip
    assert not finding.confirmed
    assert result.verdict.exit_code == 30


def test_mig_devices_named_by_the_job_are_not_the_nodes_fault(on, judge):
    job = on(ALONE, per_node=3, values=("0", "1", "MIG-{node}00000007-aaaa"))
    (finding,) = judge(job, "gpu.mapping", "gpu.mig").findings
    assert (finding.rule, finding.scope, finding.ranks) == ("gpu-mig-partial", "job", (2,))


def asked_cuda(job, devices, change):
    """Return the job after CUDA has shown each rank this many GPUs."""
    return change.rank(job, None, cuda=CudaView(tuple(CudaDevice(uuid) for uuid in devices)))


@pytest.mark.parametrize("gpu", [0, 3, 7])
@pytest.mark.parametrize("others", [(), (H100, H100)])
def test_a_gpu_in_mig_mode_without_devices_is_the_only_finding(on, judge, change, gpu, others):
    job = on(empty(gpu), *others)
    result = judge(job)
    assert errors(result) == [("gpu-mig-without-device", "error", (7,), ("node1",))]
    (finding,) = result.findings
    assert finding.message.startswith(f"node1: GPU {gpu} (0000:")
    assert "is in MIG mode without a MIG device, so CUDA shows 7 of 8 GPUs; rank 7 (node1" in finding.message
    assert finding.fix.commands == (f"sudo nvidia-smi -i {gpu} -mig 0", f"nvidia-smi mig -i {gpu} -lgip")
    assert (finding.scope, finding.confirmed, result.verdict.exit_code) == ("gpu", False, 20)
    seen = asked_cuda(job, job.ranks[0].visible_gpus, change)
    assert judge(seen, "gpu.mig").verdict.exit_code == 40, "CUDA has shown that it is not there"


def test_a_rank_that_sees_only_that_gpu_gets_none(on, judge):
    job = on(empty(0), values=tuple(str(i) for i in range(8)))
    assert errors(judge(job)) == [("gpu-mig-without-device", "error", (0,), ("node1",))]


def test_only_the_gpus_that_ranks_need_are_named(on, judge):
    job = on(empty(0, 5), per_node=2, values=("4,5", "4,5"))
    (finding,) = judge(job).findings
    assert (finding.rule, finding.ranks) == ("gpu-mig-without-device", (1,))
    assert finding.fix.commands[0] == "sudo nvidia-smi -i 5 -mig 0"
    assert "GPU 0 " not in finding.message, "and that both ranks come to GPU 4 is no finding of its own"


def test_all_gpus_in_mig_mode_are_one_finding_for_their_node(on, judge):
    (finding,) = judge(on(H100 + "mig 1\nmig.slots 7\n", H100)).findings
    assert (finding.rule, finding.ranks, finding.nodes) == ("gpu-mig-without-device", tuple(range(8)), ("node1",))
    assert "CUDA shows 0 of 8 GPUs" in finding.message
    assert finding.fix.commands[0] == "sudo nvidia-smi -i 0,1,2,3,4,5,6,7 -mig 0"


def test_the_same_fault_on_most_nodes_has_scope_system(on, judge, change):
    job = on(*[empty(0)] * 3)
    seen = asked_cuda(job, job.ranks[0].visible_gpus, change)
    result = judge(seen, "gpu.mig")
    assert {f.scope for f in result.findings} == {"system"}
    assert result.verdict.exit_code == 30


@pytest.mark.parametrize(("needed", "found"), [(8, ["gpu-mig-without-device"]), (7, []), (None, [])])
def test_distcheck_node_reports_it_if_that_many_gpus_are_needed(on, judge, change, needed, found):
    job = on(empty(0), per_node=1)
    bare = change.rank(job, None, environment={}, placement=Placement(), visible_gpus=None, gpu=None)
    alone = change.asked(bare, looks=("node", "gpu"), command="node", gpus=needed)
    assert [f.rule for f in judge(alone, "gpu.mig", "gpu.mapping", "host.node").findings] == found
