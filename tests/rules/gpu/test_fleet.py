"""GPUs compared over a job: the odd one is named at its rank; of two, neither is blamed."""

from __future__ import annotations

import pytest
from made.nvml_jobs import PROFILES, but_guesses

from distcheck.facts.base import Missing
from distcheck.facts.pci import Pci, PciPlace
from distcheck.rules import FAMILIES

H100, H200, A100, L40S = (PROFILES[name] for name in ("dgx_h100", "h200", "dgx_a100", "pcie_l40s"))
OURS = tuple(name for name, family in FAMILIES.items() if "gpu" in family.looks)
OLDER = "driver 535.183.01\ncuda 12020\n"
SEVEN = "count 7\n"
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
ON_NODE3, ON_NODE2 = tuple(range(16, 24)), tuple(range(8, 16))


@pytest.fixture
def judge(judge):
    return but_guesses(judge)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 2), (1, 8), (2, 1), (2, 8), (3, 4), (4, 8)])
def test_a_healthy_job_of_every_profile_is_silent(on, judge, profile, nodes, per_node):
    text = PROFILES[profile]
    count = int(next(line.split()[1] for line in text.splitlines() if line.startswith("count ")))
    each = (per_node,) * nodes if per_node <= count else (count,) * nodes
    slices = tuple(f"MIG-{{node}}0000000{i}-aaaa-bbbb-cccc-dddddddddddd" for i in range(8))
    job = on(*[text] * nodes, per_node=each, values=slices if "_mig" in profile else ())
    result = judge(job)
    assert (result.findings, result.not_checked) == ((), ())


@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ("name NVIDIA A100-SXM4-80GB\n", "gpu-mixed-models", "node3, GPUs 0-7: NVIDIA A100-SXM4-80GB with 85.5 GB"),
        ("memory.total 102005473280\n", "gpu-mixed-models", "node3, GPUs 0-7: NVIDIA H100 80GB HBM3 with 102.0 GB"),
        (OLDER, "sw-driver-differs-nodes", "node3 has driver 535.183.01 (CUDA 12.2); most nodes have driver 550.54.15"),
        ("cuda 12080\n", "sw-driver-differs-nodes", "node3 has driver 550.54.15 (CUDA 12.8)"),
        ("power.limit 600000\npower.default 600000\n", "gpu-power-cap", "limited to 600 W; most GPUs of its model"),
    ],
)
def test_the_odd_node_of_four_is_named_and_the_others_are_not(on, judge, fault, rule, words):
    result = judge(on(H100, H100, H100 + fault, H100))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.ranks, finding.nodes) == (rule, "warning", ON_NODE3, ("node3",))
    assert words in finding.message
    assert finding.confirmed
    assert result.verdict.exit_code == 0


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("name NVIDIA A100-SXM4-80GB\n", "gpu-mixed-models"), (OLDER, "sw-driver-differs-nodes")],
)
@pytest.mark.parametrize("each", [1, 2])
def test_with_two_equal_sides_no_node_is_blamed(on, judge, fault, rule, each):
    (finding,) = judge(on(*[H100] * each, *[H100 + fault] * each)).findings
    assert (finding.rule, finding.severity, finding.scope) == (rule, "warning", "job")
    assert finding.ranks == tuple(range(16 * each))
    assert finding.nodes == tuple(f"node{n + 1}" for n in range(2 * each))
    assert not finding.confirmed
    assert all(f"node{n + 1}" in finding.message for n in range(2 * each))


def test_without_a_majority_no_node_is_blamed(on, judge):
    for drivers in ((550, 535, 580), (550, 550, 535, 536, 537)):
        (finding,) = judge(on(*(H100 + f"driver {n}.1\n" for n in drivers), per_node=1)).findings
        assert (finding.rule, finding.scope) == ("sw-driver-differs-nodes", "job")
        assert len(finding.nodes) == len(drivers)


def test_the_odd_gpu_of_a_node_is_named_at_its_rank(on, judge, says):
    job = on(L40S + "2.name NVIDIA L4\n2.memory.total 24000000000\n", **BY_BUS)
    (finding,) = judge(job).findings
    assert (finding.rule, finding.ranks, finding.nodes) == ("gpu-mixed-models", (2,), ("node1",))
    assert finding.message.startswith("node1, GPU 2 (")
    assert "most of the job's GPUs are NVIDIA L40S" in finding.message
    of_two = on(H100, H100 + "5.name NVIDIA H800\n5.links 8\n", **BY_BUS)
    assert says(of_two) == [("gpu-mixed-models", "warning", (13,), ("node2",))]


def test_an_unused_card_a_percent_of_memory_or_a_missing_name_is_not_a_difference(on, says):
    assert says(on(H100 + "7.name NVIDIA T400\n", per_node=7, **BY_BUS)) == []
    assert says(on(H100, H100 + "memory.total 85400000000\n", H100 + "3.name !999\n")) == []


def test_a_missing_gpu_that_a_rank_needs_is_an_error_of_the_node(on, judge):
    result = judge(on(H100, H100, H100 + SEVEN, H100))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.scope) == ("gpu-fewer-on-one-node", "error", "node")
    assert (finding.ranks, finding.nodes, finding.confirmed) == ((23,), ("node3",), False)
    assert finding.message == "node3 has 7 GPUs; node1, node2 and node4 have 8 for as many ranks (8); rank 23 has none"
    assert result.verdict.exit_code == 20


def test_a_missing_gpu_that_no_rank_needs_is_a_warning(on, says):
    fewer = [("gpu-fewer-on-one-node", "warning", (8, 9, 10, 11), ("node3",))]
    assert says(on(H100, H100, H100 + SEVEN, per_node=4)) == fewer


def test_of_two_nodes_both_are_named(on, judge):
    (finding,) = judge(on(H100, H100 + SEVEN, per_node=4)).findings
    assert (finding.severity, finding.scope, finding.nodes) == ("warning", "job", ("node2", "node1"))
    assert not finding.confirmed
    result = judge(on(H100, H100 + SEVEN))
    (finding,) = result.findings
    assert (finding.severity, finding.scope, finding.ranks) == ("error", "job", (15,))
    assert result.verdict.exit_code == 30


def test_nodes_of_another_model_or_with_fewer_ranks_may_have_fewer_gpus(on, says):
    assert says(on(H100, H100, H100 + "count 4\n", per_node=(8, 8, 4))) == []
    four = L40S + "count 4\ndriver 550.54.15\n"
    assert {rule for rule, *_ in says(on(H100, H100, four, per_node=4))} == {"gpu-mixed-models"}
    assert says(on(H100 + SEVEN, H100 + SEVEN, H100, per_node=4)) == []


def test_a_lost_gpu_and_a_node_without_any_are_reported_as_such(on, says):
    assert says(on(H100, H100, H100 + "3.lost yes\n")) == [("gpu-fell-off-bus", "error", (23,), ("node3",))]
    assert says(on(H100, H100, H100 + "count 0\n", per_node=1)) == [("gpu-none-visible", "error", (2,), ("node3",))]


def test_ranks_that_may_share_a_gpu_are_silent(on, judge, change):
    job = on(H100, H100, H100 + SEVEN, NCCL_MULTI_RANK_GPU_ENABLE="1")
    assert [(f.rule, f.severity) for f in judge(job, "gpu.fleet").findings] == [("gpu-fewer-on-one-node", "warning")]
    same = change.nccl_file(on(H100, H100, H100 + SEVEN), None, "NCCL_MULTI_RANK_GPU_ENABLE=1")
    assert judge(same, "gpu.fleet").findings == judge(job, "gpu.fleet").findings


def test_more_ranks_than_gpus_on_every_node_blames_no_node(on, says, judge):
    job = on(H100 + SEVEN, H100 + SEVEN)
    assert says(job) == []
    (finding,) = judge(job).findings
    assert (finding.rule, finding.ranks) == ("env-local-rank-out-of-range", (7, 15))


def with_bus(change, job, node, *more):
    """Return a job of which sysfs shows each node's PCI bus, with additional GPUs on one."""
    for n, each in enumerate(job.nodes):
        addresses = [gpu.pci for gpu in each.gpus.devices] + (list(more) if n == node else [])
        job = change.node(job, n, pci=Pci(gpus={address: PciPlace((), None) for address in addresses}, nics=()))
    return job


def test_a_gpu_on_the_bus_that_nvml_does_not_list_confirms_the_node(on, judge, change):
    job = with_bus(change, on(H100, H100, H100 + SEVEN, H100), 2, "0000:df:00.0")
    result = judge(job, "gpu.fleet")
    (finding,) = result.findings
    assert (finding.ranks, finding.nodes, finding.confirmed) == ((23,), ("node3",), True)
    assert "0000:df:00.0 is on its PCI bus but not in the driver's list" in finding.message
    assert result.verdict.exit_code == 40


def test_a_gpu_on_the_bus_of_a_single_node_is_an_info_finding(on, judge, change):
    job = with_bus(change, on(H100 + SEVEN, per_node=7), 0, "0000:df:00.0")
    (finding,) = judge(job, "gpu.fleet").findings
    assert (finding.rule, finding.severity, finding.nodes) == ("gpu-fewer-on-one-node", "info", ("node1",))
    assert judge(with_bus(change, on(H100), 0), "gpu.fleet").findings == ()


@pytest.mark.parametrize("sign", ["SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST", "PBS_JOBID"])
def test_gpus_on_the_bus_outside_the_jobs_share_are_silent(on, judge, change, sign):
    job = change.environment(with_bus(change, on(H100 + SEVEN, per_node=7), 0, "0000:df:00.0"), None, **{sign: "1"})
    assert judge(job, "gpu.fleet").findings == ()


def test_a_node_without_nvml_is_not_compared(on, judge, change):
    job = change.node(on(H100, H100), 1, gpus=Missing(reason="NVML error 999: Unknown Error"))
    result = judge(job, "gpu.fleet")
    assert result.findings == ()
    rules = {"gpu-mixed-models", "gpu-fewer-on-one-node", "sw-driver-differs-nodes"}
    assert {n.rule for n in result.not_checked} == rules


NOT_SUPPORTED = Missing(reason="NVML error 3: Not Supported")


@pytest.mark.parametrize(
    ("texts", "unknown", "told"),
    [
        ((H100, H100), {1: "driver"}, ""),
        ((H100, H100, H100, H100), {1: "driver"}, ""),
        ((H100, H100), {1: "cuda_driver"}, ""),
        ((H100, H100, H100, H100), {1: "cuda_driver"}, ""),
        ((H100, H100, H100 + "cuda 12080\n", H100), {3: "cuda_driver"}, "node3 has driver 550.54.15 (CUDA 12.8)"),
        ((H100, H100, H100 + OLDER, H100), {1: "cuda_driver", 2: "cuda_driver"}, "node3 has driver 535.183.01; most"),
    ],
)
def test_an_unknown_version_is_not_a_difference(on, judge, gpus, texts, unknown, told):
    job = on(*texts)
    for n, version in unknown.items():
        job = gpus(job, n, **{version: NOT_SUPPORTED})
    findings = judge(job, "gpu.fleet").findings
    assert [(f.rule, f.nodes) for f in findings] == [("sw-driver-differs-nodes", ("node3",))] * bool(told)
    assert all(told in f.message for f in findings)


DIRECT = A100.replace("link.remote 2", "link.remote 0")


def test_a_node_with_fewer_direct_links_on_all_gpus_is_a_warning(on, judge):
    assert judge(on(DIRECT, DIRECT, DIRECT)).findings == ()
    (finding,) = judge(on(DIRECT, DIRECT, DIRECT + "link.state.3 0\n")).findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-nvlink-down", "warning", ON_NODE3)
    assert "11 of 12 NVLinks as on most nodes are active; down: 3" in finding.message
    assert judge(on(DIRECT, DIRECT + "link.state.3 0\n")).findings == ()


def test_a_node_with_fewer_switch_links_on_all_gpus(on, says):
    assert says(on(H100, H100 + "link.state.17 0\n")) == [("gpu-nvlink-down", "error", ON_NODE2, ("node2",))]
