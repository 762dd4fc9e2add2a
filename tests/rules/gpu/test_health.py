"""The condition of GPUs, from NVML's library to the finding: only the faulty GPU and rank.

The text is what tests/nvml/fake_nvml.c answers; nvidia-ml-py and the facts are the real ones.
"""

from __future__ import annotations

import pytest
from made.nvml_jobs import PROFILES
from made.policies import policy

from distcheck.rules import FAMILIES

H100, H200, A100, L40S = (PROFILES[name] for name in ("dgx_h100", "h200", "dgx_a100", "pcie_l40s"))
OURS = tuple(name for name, family in FAMILIES.items() if family.looks == ("gpu",))
CLUSTER = "fabric.cluster 0123456789abcdef0123456789abcdef\nfabric.clique 7\n"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_machine_with_one_gpu_is_silent(on, says, profile):
    assert says(on(PROFILES[profile] + "count 1\n", per_node=1)) == []


def test_a_virtual_machine_without_health_values_is_silent(on, says):
    bare = "".join(line for line in H100.splitlines(keepends=True) if line.split(" ")[0] in {
        "driver", "cuda", "count", "uuid", "name", "memory.total", "memory.used", "memory.reserved", "mig",
        *(f"{i}.pci" for i in range(8)),
    })  # fmt: skip
    assert says(on(bare)) == []


# The fault at GPU 3 of eight, the rule, its severity, whether it puts the node on the exclude list, and its text.
AT_GPU_3 = [
    ("ecc.1.0 2", "gpu-ecc-uncorrected", "error", True, "2 uncorrected ECC errors since its last reset"),
    ("rows 3 1 0 1", "gpu-row-remap-pending", "error", True, "no spare row is left; 4 rows are remapped"),
    ("rows 3 1 1 0", "gpu-row-remap-pending", "warning", False, "wait for a reset to be remapped"),
    ("retired.pending 1", "gpu-retired-pages", "warning", False, "wait for a reboot to be retired"),
    ("field.230 type 1 1", "gpu-needs-reset", "error", True, "requests: reset this GPU"),
    ("field.230 type 1 2", "gpu-needs-reset", "error", True, "requests: reboot the node"),
    ("field.230 type 1 5", "gpu-needs-reset", "error", False, "requests: recover the IMEX domain"),
    ("field.230 type 1 77", "gpu-needs-reset", "error", False, "requests recovery action 77"),
    ("ecc.pending 0", "gpu-needs-reset", "info", False, "ECC is on and will be off after a reset"),
    ("reasons 0x40", "gpu-thermal-throttle", "warning", False, "hardware thermal slowdown, 29 C of 89 C"),
    ("reasons 0x20", "gpu-thermal-throttle", "warning", False, "software thermal slowdown"),
    ("reasons 0x8", "gpu-thermal-throttle", "warning", False, "hardware slowdown"),
    ("temperature 90", "gpu-thermal-throttle", "warning", False, "slowdown threshold, 90 C of 89 C"),
    ("power.limit 400000", "gpu-power-cap", "warning", False, "limited to 400 W; the default is 700 W"),
    ("reasons 0x88", "gpu-power-cap", "warning", False, "power brake"),
    ("clock.application 1200", "gpu-clocks-locked", "warning", False, "1200 MHz; the default is 1980 MHz"),
    ("fabric.state 2", "gpu-fabric-manager-down", "error", False, "is still in progress"),
    ("fabric.status 999", "gpu-fabric-manager-down", "error", False, "ended with NVML error 999"),
    ("fabric.state 9", "gpu-fabric-manager-down", "info", False, "fabric state 9 is unknown to distcheck"),
    ("fabric.mask 0x5aa", "gpu-nvls-multicast-broken", "error", False, "incorrect configuration: too few NVLinks"),
    ("fabric.mask 0x19a", "gpu-nvls-multicast-broken", "error", False, "an unhealthy route"),
    ("fabric.mask 0x1a9", "gpu-nvls-multicast-broken", "warning", False, "degraded bandwidth"),
    ("fabric.summary 2", "gpu-nvls-multicast-broken", "error", False, "unhealthy"),
    ("fabric.summary 3", "gpu-nvls-multicast-broken", "warning", False, "limited capacity"),
    ("link.state.5 0", "gpu-nvlink-down", "error", False, "17 of 18 NVLinks are active; down: 5"),
    ("link.state 0", "gpu-nvlink-down", "error", False, "none of 18 NVLinks is active"),
    ("field.161.5 7000", "gpu-nvlink-errors", "warning", False, "NVLink 5 has counted 7000 replay errors"),
    ("field.214.2 1", "gpu-nvlink-errors", "warning", False, "NVLink 2 failed to recover 1 time"),
    ("pcie.width 8", "gpu-pcie-downgraded", "warning", False, "PCIe x8; x16 is possible"),
    ("pcie.replays 5000", "gpu-pcie-replay", "warning", False, "5000 packets were resent"),
    ("processes 4711:2000000000", "gpu-other-processes", "warning", False, "in use by process 4711, with 2.0 GB"),
    ("processes 4711:- 4712:-", "gpu-other-processes", "warning", False, "in use by processes 4711 and 4712"),
    ("memory.used 9000000000", "gpu-other-processes", "warning", False, "8.4 GB of its memory in use"),
    ("compute_mode 3", "gpu-exclusive-mode", "info", False, "one process at a time"),
    ("compute_mode 2", "gpu-prohibited-mode", "error", False, "CUDA cannot use it"),
    ("mps_processes 4711:1000", "gpu-mps-active", "warning", False, "Multi-Process Service is active"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "rule", "severity", "confirmed", "words"), AT_GPU_3, ids=lambda v: str(v)[:30])
def test_each_fault_names_only_its_gpu_and_rank(on, judge, line, rule, severity, confirmed, words):
    result = judge(on(H200, H200 + f"3.{line}\n"))
    (finding,) = result.findings
    assert (finding.rule, finding.severity) == (rule, severity)
    assert (finding.ranks, finding.nodes) == ((11,), ("node2",))
    assert [(gpu.node, gpu.index) for gpu in finding.gpus] == [("node2", 3)]
    assert words in finding.message
    assert finding.fix.text
    if severity == "error":
        assert result.verdict.exit_code == (40 if confirmed else 20)
        assert finding.confirmed is confirmed
    else:
        assert result.verdict.exit_code == 0
    if rule != "gpu-mps-active":
        assert "GPU 3 (0000:61:00.0)" in finding.message
        assert "GPU-13" in finding.evidence["GPU 3"]


@pytest.mark.parametrize(
    "line",
    [
        "ecc.1.1 900",  # uncorrected, before the last reset
        "ecc.0.0 50",  # corrected
        "rows 4 2 0 0",  # remapped long ago
        "reasons 0x4",  # the power limit, which every busy GPU reaches
        "reasons 0x1000",  # unknown
        "pcie.gen 1",
        "pcie.replays 40",
        "field.161.3 12",
        "field.230 type 1 0",
        "field.269 8000000000",
        "fabric.state !999",
        "fabric.state 0",
        "fabric.cluster 00000000000000000000000000000000",
        "temperature.threshold.1 0",
        "temperature !3",
        "power.limit 699000",
        "clock.application !3",
        "processes !3",
        "numa 0,1",
        "display 1",
        "module !3",
        "compute_mode 42",
    ],
)
def test_healthy_and_unknown_values_are_silent(on, says, line):
    assert says(on(H200 + f"3.{line}\n")) == []


def test_unreadable_values_are_listed_and_raise_no_finding(on, judge):
    result = judge(on(H200 + "3.ecc.1.0 !4\n5.rows !999\n6.field.230 type 99 7\n"))
    assert result.findings == ()
    assert [(n.rule, n.ranks, n.required) for n in result.not_checked] == [
        ("gpu-ecc-uncorrected", (3,), False),
        ("gpu-row-remap-pending", (5,), False),
        ("gpu-needs-reset", (6,), False),
    ]
    assert "no permission" in result.not_checked[0].reason
    assert result.verdict.exit_code == 0


@pytest.mark.parametrize("line", ["ecc.1.0 2", "link.state.5 0", "compute_mode 2", "processes 4711:-"])
def test_a_gpu_that_no_rank_takes_is_an_info_finding(on, says, line):
    (result,) = says(on(H200 + f"3.{line}\n", per_node=2))
    assert result[1:] == ("info", (), ("node1",))


def test_the_rank_is_found_by_its_gpu_not_by_its_number(on, says):
    job = on(H200 + "3.ecc.1.0 2\n", per_node=2, values=("2,3", "2,3"))
    assert says(job) == [("gpu-ecc-uncorrected", "error", (1,), ("node1",))]


ALL = tuple(range(8))
CHINA = H100.replace("NVIDIA H100 80GB HBM3", "NVIDIA H800") + "links 8\n"
BROKEN = "3.ecc.1.0 2\n3.rows 0 1 1 0\n3.field.230 1\n"
DOWN = "fabric.state 1\nlink.state 0\nlink.remote !3\np2p.read 5\np2p.write 5\n"
NODES = {
    "CUDA skips a lost GPU, the last rank has none": (H200 + "3.reasons !15\n", 8, "gpu-fell-off-bus", "error", (7,)),
    "one broken GPU is one finding": (H200 + BROKEN, 8, "gpu-ecc-uncorrected", "error", (3,)),
    "a fabric that is down": (H200 + DOWN, 8, "gpu-fabric-manager-down", "error", ALL),
    "one GPU without a fabric": (H200 + "count 1\nfabric.state 1\n", 1, "gpu-fabric-manager-down", "warning", (0,)),
    "a card without NVLink needs none": (L40S + "fabric.state 1\n", 8),
    "a known model's links": (H100 + "count 1\nlink.state.5 0\n", 1, "gpu-nvlink-down", "error", (0,)),
    "a cut-down model": (CHINA, 8),
    "a cut-down model compared with its peers": (CHINA + "6.link.state.1 0\n", 8, "gpu-nvlink-down", "error", (6,)),
    "no bridge beside bridged cards": (
        L40S + "links 4\nlink.state 1\nlink.remote 0\n3.link.state 0\n", 8, "gpu-nvlink-down", "info", (3,),
    ),
    "no bridge at all": (L40S + "links 12\nlink.state 0\n", 8),
    "no links in MIG mode": (A100 + "3.mig 1\n3.mig.slots 7\n3.link.state 0\n", 2),
    "P2P off explained": (
        H200 + "confidential 1\np2p.read 4\np2p.write 4\n", 8, "gpu-confidential-compute", "info", ALL,
    ),
    "counts that all links have": (H200 + "field.161 5000\npcie.replays 5000\n", 8),
    "a Grace whose driver has no NUMA node": (PROFILES["gh200"] + "own_numa !13\n", 1),
    "a desktop uses GPU memory": (L40S + "0.display 1\n0.memory.used 3000000000\n", 8),
    "pairs connected by NVLink without P2P": (
        H200 + "2.p2p.read.5 4\n2.p2p.write.5 4\n", 8, "gpu-nvlink-down", "warning", (2, 5),
        "NVLink connects it to GPU 5, but P2P is off: it is disabled in the driver's registry",
    ),
    "old counters where new ones are missing": (
        A100 + "6.link.errors.2.4 123456\n", 8, "gpu-nvlink-errors", "warning", (6,),
        "NVLink 4 has counted 123456 crc errors",
    ),
    "other processes compute through MPS": (
        H200 + "3.mps_processes 4711:1000 4712:1000\n", 8, "gpu-mps-active", "warning", (3,),
        "Multi-Process Service is active, in use by processes 4711 and 4712",
    ),
    "a low power limit on all GPUs": (H200 + "power.limit 500000\n", 8, "gpu-power-cap", "warning", ALL),
    "no IMEX channel on a node by itself": (H200 + CLUSTER, 8, "gpu-mnnvl-imex", "info", ALL),
}  # fmt: skip


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_at_most_one_finding_for_a_cause(on, only, silent, node):
    text, ranks, *expected = NODES[node]
    if not expected:
        assert silent(on(text, per_node=ranks))
        return
    finding, _ = only(on(text, per_node=ranks))
    assert [finding.rule, finding.severity, finding.ranks] == expected[:3]
    assert all(words in finding.message for words in expected[3:])


@pytest.mark.parametrize(
    ("texts", "rule", "severity", "nodes", "words"),
    [
        (
            [H200 + "compute_mode 3\n"] * 4,
            "gpu-exclusive-mode",
            "info",
            (1, 2, 3, 4),
            "node3 and 1 more: GPUs 0-7",
        ),
        ([H200 + "power.limit 500000\n"] * 2, "gpu-power-cap", "info", (1, 2), "500 W"),  # the site's choice
        ([H200, H200 + "power.limit 500000\n"], "gpu-power-cap", "warning", (2,), "500 W"),
        ([H200 + CLUSTER] * 2, "gpu-mnnvl-imex", "error", (1, 2), "the IMEX channel does not exist"),
    ],
)
def test_nodes_with_the_same_faults_are_one_finding(on, only, texts, rule, severity, nodes, words):
    finding, _ = only(on(*texts))
    assert (finding.rule, finding.severity) == (rule, severity)
    assert (finding.nodes, len(finding.ranks)) == (tuple(f"node{n}" for n in nodes), 8 * len(nodes))
    assert words in finding.message


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("3.pcie.width 8\n", ["lspci -vv -s 0000:61:00.0"]),
        ("3.pcie.width 8\n1.pcie.width 8\n", ["lspci -vv -s 0000:43:00.0", "lspci -vv -s 0000:61:00.0"]),
        ("3.pcie.width 8\n3.pci !999\n", []),
    ],
)
def test_the_bus_is_asked_for_gpus_by_their_addresses(on, judge, text, commands):
    finding = next(f for f in judge(on(H200 + text)).findings if f.rule == "gpu-pcie-downgraded")
    asked = [command for command in finding.fix.commands if "lspci" in command]
    assert asked == [f"sudo {command} | grep -i lnk" for command in commands]


@pytest.mark.parametrize(
    ("limits", "commands"),
    [
        ("3.power.limit 400000\n", ["-i 0000:61:00.0 -pl 700"]),
        ("3.power.limit 400000\n1.power.limit 300000\n", ["-i 1,3 -pl 700"]),
        ("3.power.limit 400000\n3.power.default 600000\n1.power.limit 300000\n",
         ["-i 0000:43:00.0 -pl 700", "-i 0000:61:00.0 -pl 600"]),
        ("power.limit 600000\npower.default 600000\n", ["-i 0,1,2,3,4,5,6,7 -pl 700"]),
    ],
)  # fmt: skip
def test_the_usual_power_limit_can_be_pasted(on, judge, limits, commands):
    found = [f for f in judge(on(H200, H200, H200 + limits)).findings if f.rule == "gpu-power-cap"]
    assert [f.fix.commands[-1] for f in found] == [f"sudo nvidia-smi {command}" for command in commands]


def test_an_imex_channel_is_needed_only_within_a_clique_and_for_mnnvl(on, says, gpus, change):
    rack = H200 + CLUSTER
    assert says(on(rack, rack, NCCL_MNNVL_ENABLE="0")) == []
    assert says(change.nccl_file(on(rack, rack), None, "NCCL_MNNVL_ENABLE=0")) == []
    assert {severity for _, severity, _, _ in says(on(rack, rack + "fabric.clique 8\n"))} == {"info"}
    assert says(gpus(on(rack, rack), imex_channel="usable")) == []


def test_the_mps_daemon_is_found_without_nvml(on, says, gpus):
    assert says(gpus(on(H200 + "processes 4711:-\n"), mps_daemon=True)) == [
        ("gpu-mps-active", "info", tuple(range(8)), ("node1",))
    ]


def test_an_exclusive_gpu_is_a_warning_where_it_gets_a_second_process(on, change, gpus, says):
    exclusive = H200 + "3.compute_mode 3\n"
    busy = says(on(exclusive + "3.processes 4711:-\n"))
    assert sorted(busy) == [
        ("gpu-exclusive-mode", "warning", (3,), ("node1",)),
        ("gpu-other-processes", "warning", (3,), ("node1",)),
    ]
    shared = change.rank(on(exclusive), 4, gpu="GPU-03")
    assert ("gpu-exclusive-mode", "warning", (3, 4), ("node1",)) in says(shared)
    assert ("gpu-exclusive-mode", "info", (3, 4), ("node1",)) in says(gpus(shared, mps_daemon=True))


def test_a_node_by_itself_may_have_a_job_running(on, says):
    job = on(H200 + "3.processes 4711:-\n", looks=("node", "gpu"))
    assert says(job) == [("gpu-other-processes", "info", (3,), ("node1",))]
    through_mps = on(H200 + "3.mps_processes 4711:1000\n", looks=("node", "gpu"))
    assert says(through_mps) == [("gpu-mps-active", "info", (3,), ("node1",))]


def test_gpu_health_is_silent_for_cpu_ranks(on, judge, change):
    job = change.asked(on(H200 + "ecc.1.0 2\n"), backend="gloo")
    assert judge(job).findings == ()


def test_a_node_whose_gpus_could_not_be_read_is_named_and_its_ranks_keep_their_gpus(on, judge, gpus):
    reason = "NVML did not answer within 10 s: a GPU or its driver hangs"
    job = gpus(on(H200, H200), 1, lambda _: {"health": None}, unread=reason)
    result = judge(job)
    (finding,) = result.findings
    assert (finding.rule, finding.nodes, finding.ranks) == ("gpu-nvml-init-failed", ("node2",), tuple(range(8, 16)))
    assert {(n.nodes, n.reason) for n in result.not_checked} == {(("node2",), reason)}
    assert result.verdict.exit_code == 20
    assert judge(job, "gpu.health").verdict.exit_code == 20


@pytest.mark.parametrize(
    ("celsius", "rules"), [(28, ["gpu-thermal-throttle"]), (29, ["gpu-thermal-throttle"]), (30, [])]
)
def test_the_site_s_policy_can_allow_less_heat_than_the_gpu_itself(on, judge, change, celsius, rules):
    job = change.asked(on(H200), policy=policy({"threshold": {"gpu-celsius": celsius}}))
    result = judge(job, "gpu.clocks")
    assert [f.rule for f in result.findings][:1] == rules
    assert all(f"29 C; the site's policy allows less than {celsius} C" in f.message for f in result.findings)
