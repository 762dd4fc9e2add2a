"""What is found on nodes with AMD GPUs, from trees of /sys and /dev to findings.

The rules about GPUs are those of NVIDIA's; each fault is on node2 or its GPU 3, beside healthy nodes.
"""

from __future__ import annotations

import pytest
from made.amd import CPX, FULL, MI250X, MI300X, cpx
from made.amd import change as change_gpu
from made.amd_jobs import ROCM
from msgspec.structs import replace

from distcheck.facts import gpu as gpu_facts
from distcheck.facts.base import Missing
from distcheck.facts.gpu import DriverError, GpuClocks, GpuLoad
from distcheck.facts.nccl import NcclFile
from distcheck.facts.node import TorchBuild

ALL, ALL_OF_NODE3 = tuple(range(8, 16)), tuple(range(16, 24))


def with_gpu_3(job, change, **fields):
    """Return a job in which GPU 3 of node2 has these facts."""
    gpus = job.nodes[1].gpus
    devices = tuple(replace(gpu, **fields) if gpu.index == 3 else gpu for gpu in gpus.devices)
    return change.node(job, 1, gpus=replace(gpus, devices=devices))


def with_clocks(job, change, reasons):
    """Return a job in which the firmware gives these reasons for the clocks of GPU 3 of node2."""
    health = job.nodes[1].gpus.devices[3].health
    return with_gpu_3(job, change, health=replace(health, clocks=GpuClocks(event_reasons=reasons)))


def without(*pairs):
    """Return the machine without XGMI links between these pairs of GPUs."""
    return MI300X._replace(links={pair: n for pair, n in FULL.items() if pair not in pairs and pair[::-1] not in pairs})


def in_cpx(machine, number):
    """Return the machine with one of its cards in CPX."""
    card = machine.gpus[number]
    parts = tuple(
        part._replace(path=card.path, unique_id=card.unique_id, numa=card.numa, mode="CPX NPS1") for part in cpx(1).gpus
    )
    return machine._replace(gpus=machine.gpus[:number] + parts + machine.gpus[number + 1 :])


@pytest.mark.parametrize("machines", [(MI300X, MI300X), (MI300X,), (MI250X, MI250X), (MI250X,), (CPX,), (CPX, CPX)])
def test_nothing_is_found_on_healthy_machines(rocm, judge, machines):
    assert judge(rocm(*machines))[:2] == ((), ())


def test_each_rank_gets_the_gpu_that_hip_numbers_so_and_its_model(rocm):
    job = rocm(MI300X, MI300X)
    assert [rank.gpu for rank in job.ranks[:2]] == ["GPU-a1b2000000000010", "GPU-a1b2000000000011"]
    assert len({rank.gpu for rank in job.ranks}) == 16
    assert {gpu.name for gpu in job.nodes[0].gpus.devices} == {"AMD Instinct MI300X"}


AT_GPU_3 = [
    (
        {"errors": {"umc": "ue: 3\nce: 10\nde: 0"}},
        "gpu-ecc-uncorrected",
        "error",
        40,
        "3 uncorrected ECC errors in umc",
    ),
    ({"errors": {"xgmi_wafl": "ue: 1\nce: 0"}}, "gpu-ecc-uncorrected", "error", 40, "in xgmi_wafl since the driver"),
    ({"pages": "0x00000001 : 0x00001000 : P"}, "gpu-retired-pages", "warning", 0, "bad pages of memory wait"),
    ({"pages": "0x00000001 : 0x00001000 : F"}, "gpu-bad-pages-in-use", "error", 40, "1 bad page of memory could not"),
    ({"width": 8}, "gpu-pcie-downgraded", "warning", 0, "PCIe x8; x16 is possible"),
    ({"celsius": {"junction": 101, "mem": 60}}, "gpu-thermal-throttle", "warning", 0, "101 C of 100 C"),
    ({"watts": (500, 750)}, "gpu-power-cap", "warning", 0, "500 W; the default is 750 W"),
    ({"iommu": "DMA-FQ"}, "gpu-iommu-translates", "warning", 0, "IOMMU group is of type DMA-FQ; identity expected"),
    ({"level": "low"}, "gpu-clocks-locked", "warning", 0, "performance level low; auto expected"),
    ({"users": {4711: 5 << 30}}, "gpu-other-processes", "warning", 0, "in use by process 4711, with 5.4 GB"),
    (
        {"used": 9 << 30},
        "gpu-other-processes",
        "warning",
        0,
        "9.7 GB of its memory in use by processes that are hidden",
    ),
]


@pytest.mark.parametrize(("fields", "rule", "severity", "code", "words"), AT_GPU_3, ids=lambda v: str(v)[:40])
def test_a_fault_of_one_gpu_names_only_it_and_its_rank(rocm, judge, fields, rule, severity, code, words):
    said = judge(rocm(MI300X, change_gpu(MI300X, 3, **fields)))
    (finding,) = said.findings
    assert (finding.rule, finding.severity, finding.ranks, finding.nodes) == (rule, severity, (11,), ("node2",))
    assert finding.message.startswith("node2: GPU 3 (0000:69:00.0): ")
    assert words in finding.message
    assert said.verdict.exit_code == code
    assert not [command for command in finding.fix.commands if "nvidia" in command or "dcgm" in command]


def test_corrected_errors_reserved_pages_and_the_counts_of_suspended_cards_are_no_fault(rocm, judge):
    errors = {"umc": "ue: 1048560\nce: 1048560", "gfx": "ue: 0\nce: 7", "mmhub": ""}
    machine = change_gpu(MI300X, 3, errors=errors, pages="0x00000001 : 0x00001000 : R")
    assert judge(rocm(MI300X, machine))[:2] == ((), ())


def test_errors_that_cannot_be_read_are_not_taken_for_none(rocm, judge):
    text = "Query currently inaccessible"
    machine = change_gpu(MI300X, 3, errors=dict.fromkeys(("umc", "sdma", "gfx", "mmhub", "xgmi_wafl"), text))
    said = judge(rocm(MI300X, machine))
    assert not said.findings
    assert {(n.rule, n.nodes, n.reason) for n in said.not_checked} == {
        ("gpu-ecc-uncorrected", ("node2",), f"GPU 3 (0000:69:00.0): amdgpu: {text}")
    }


@pytest.mark.parametrize(
    ("variables", "rule", "words"),
    [
        ({"HIP_VISIBLE_DEVICES": "0"}, "gpu-duplicate", "(0000:0c:00.0), with HIP_VISIBLE_DEVICES='0' on each"),
        ({"ROCR_VISIBLE_DEVICES": "0"}, "gpu-duplicate", "with ROCR_VISIBLE_DEVICES='0' on each"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "gpu-duplicate", "with CUDA_VISIBLE_DEVICES='3' on each"),
        ({"HIP_VISIBLE_DEVICES": "0,0"}, "gpu-cvd-duplicate", "HIP_VISIBLE_DEVICES='0,0' shows 0 of 8 GPUs"),
        ({"HIP_VISIBLE_DEVICES": ""}, "gpu-cvd-empty", "HIP_VISIBLE_DEVICES='' shows 0 of 8 GPUs"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, "gpu-cvd-bad-item", "GPU 1 does not exist"),
        ({"HIP_VISIBLE_DEVICES": "GPU-ffff"}, "gpu-cvd-uuid-stale", "no GPU of this node has this unique id"),
    ],
)  # fmt: skip
def test_a_variable_that_leaves_ranks_the_same_gpu_or_none_is_named(rocm, judge, variables, rule, words):
    said = judge(rocm(MI300X, MI300X, **variables))
    (finding,) = said.findings
    assert (finding.rule, finding.severity, finding.ranks) == (rule, "error", tuple(range(16)))
    assert words in finding.message
    assert (
        f"unset {words.partition('=')[0].split()[-1]}" in finding.fix.commands or "GPU " in words or "no GPU" in words
    )


def test_a_gpu_of_its_own_for_each_rank_is_no_duplicate(rocm, judge):
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        said = judge(rocm(MI300X, MI300X, each=lambda local, name=name: {name: str(local)}))
        assert [f.rule for f in said.findings if f.severity != "info"] == []


def test_two_variables_that_differ_are_a_warning_because_hip_reads_the_first_alone(rocm, judge):
    shown = "0,1,2,3,4,5,6,7"
    job = rocm(MI300X, HIP_VISIBLE_DEVICES=shown, CUDA_VISIBLE_DEVICES="0")
    (finding,) = judge(job).findings
    assert (finding.rule, finding.severity) == ("gpu-visible-devices-conflict", "warning")
    assert finding.message == f"ranks 0-7 (node1): HIP_VISIBLE_DEVICES='{shown}' counts, not CUDA_VISIBLE_DEVICES='0'"
    assert not judge(rocm(MI300X, HIP_VISIBLE_DEVICES=shown, CUDA_VISIBLE_DEVICES=shown)).findings


@pytest.mark.parametrize(("driver", "words"), [("", "no driver is bound to it"), ("amdgpu", "did not start it")])
def test_a_gpu_on_the_bus_without_a_driver_is_lost_and_excludes_its_node(rocm, judge, driver, words):
    said = judge(rocm(MI300X, change_gpu(MI300X, 3, in_kfd=False, driver=driver)))
    finding = said.findings[0]
    assert (finding.rule, finding.ranks, finding.nodes) == ("gpu-fell-off-bus", (15,), ("node2",))
    assert "(0000:69:00.0): amdgpu: " in finding.message
    assert words in finding.message
    assert said.verdict.exit_code == 40


def test_a_gpu_that_a_virtual_machine_has_is_not_lost(rocm):
    job = rocm(change_gpu(MI300X, 3, in_kfd=False, driver="vfio-pci"))
    assert [gpu.lost for gpu in job.nodes[0].gpus.devices] == [""] * 7


def test_a_node_whose_gpu_has_left_the_bus_has_fewer_than_the_others(rocm, judge):
    said = judge(rocm(MI300X, MI300X, MI300X._replace(gpus=MI300X.gpus[:7])))
    finding = said.findings[0]
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-fewer-on-one-node", "error", (23,))
    assert finding.message == "node3 has 7 GPUs; node1 and node2 have 8 for as many ranks (8); rank 23 has none"


def test_a_card_in_cpx_among_spx_is_one_finding_at_its_node(rocm, judge):
    said = judge(rocm(MI300X, in_cpx(MI300X, 3)))
    (finding,) = [f for f in said.findings if f.severity == "error"]
    assert (finding.rule, finding.nodes) == ("gpu-partition-differs", ("node2",))
    assert finding.message == ("card 0000:69:00.0 of node2 is in CPX NPS1; the other 15 cards are in SPX NPS1")
    assert finding.ranks == (11, 12, 13, 14, 15)
    assert "sudo amd-smi set --compute-partition SPX" in finding.fix.commands
    assert "gpu-duplicate" not in [f.rule for f in said.findings]
    assert said.verdict.exit_code == 40


CPX64 = cpx(8)


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (lambda _: {}, "card 0000:0c:00.0 (CPX); 7 of 8 cards are unused"),
        (lambda _: {"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ""),  # what a scheduler has given
        (lambda n: {"HIP_VISIBLE_DEVICES": str(n * 8)}, ""),
        (lambda n: {"HIP_VISIBLE_DEVICES": str(63 - n * 8)}, ""),
    ],
)
def test_ranks_that_share_a_partitioned_card_beside_unused_ones_are_named(rocm, judge, each, message):
    said = judge(rocm(CPX64, CPX64, each=each))
    found = [f for f in said.findings if f.rule == "gpu-cards-unused"]
    assert [f.message for f in found] == [f"node{number}: ranks share {message}" for number in (1, 2) if message]
    assert [(f.severity, f.ranks) for f in found[1:]] == [("warning", ALL)] * bool(found)
    assert not found or "export HIP_VISIBLE_DEVICES=0,8,16,24,32,40,48,56" in found[0].fix.commands


def test_a_rank_for_each_partition_leaves_no_card_unused(rocm, judge):
    assert judge(rocm(CPX64, per_node=64)).findings == ()


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (Missing(reason="amdgpu did not answer within 7.5 s: a GPU or its driver hangs"), True),
        (Missing(reason="amdgpu: the kernel module is not loaded for AMD Instinct MI300X"), True),
        (Missing(reason="amdgpu: the kernel module is not loaded"), False),  # the graphics of a laptop
    ],
)
def test_a_driver_that_fails_on_a_node_with_a_torch_for_cpus_is_found_for_cards_for_compute(
    rocm, change, judge, gpus, found
):
    job = change.node(rocm(MI300X, MI300X), 1, gpus=gpus, torch=TorchBuild("2.13.0+cpu", None, None))
    assert [f.nodes for f in judge(job).findings if f.rule == "gpu-amdgpu-failed"] == [("node2",)] * found


@pytest.mark.parametrize(
    ("machines", "ranks", "words"),
    [
        ((MI300X, without((5, 2))), (10, 13), "GPU 2 (0000:1e:00.0): no XGMI link to GPU 5; GPU 5"),
        ((without((5, 2)),), (2, 5), "GPU 2 (0000:1e:00.0): no XGMI link to GPU 5"),
        ((MI300X, without(*((5, n) for n in range(8)))), (13,), "GPU 5 (0000:af:00.0): no XGMI link to GPU 0, GPU 1"),
        (
            (MI250X, MI250X, MI250X._replace(links={p: n for p, n in MI250X.links.items() if p != (0, 6)})),
            (16, 22), "no XGMI link to GPU 6",
        ),
        (
            (MI250X, MI250X, MI250X._replace(links=MI250X.links | {(0, 1): 3})),
            (16, 17), "XGMI link to GPU 1 of 150000 MB/s; 200000 MB/s expected",
        ),
    ],
)  # fmt: skip
def test_a_link_that_is_down_names_its_two_gpus_or_the_one_that_lacks_all(rocm, judge, machines, ranks, words):
    (finding,) = judge(rocm(*machines)).findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-xgmi-link-down", "error", ranks)
    assert finding.nodes == (f"node{len(machines)}",)
    assert words in finding.message


def test_one_node_with_another_driver_is_named(rocm, judge):
    (finding,) = judge(rocm(MI300X, MI300X, MI300X._replace(version="6.10.5"))).findings
    assert (finding.rule, finding.severity, finding.nodes) == ("sw-driver-differs-nodes", "warning", ("node3",))
    assert finding.message == "node3 has driver 6.10.5; most nodes have driver 6.12.12"
    assert finding.fix.commands[0] == "amd-smi static --driver"


SMC, VBIOS = {"firmware": {"smc": "0x00556f00"}}, {"vbios": "113-M3000100-103"}
OTHER_SMC = "smc 0x00556f00; most have smc 0x00557500"
WHOLE = MI300X._replace(gpus=tuple(gpu._replace(**VBIOS) for gpu in MI300X.gpus))


@pytest.mark.parametrize(
    ("machines", "ranks", "message"),
    [
        ((MI300X, change_gpu(MI300X, 3, **SMC)), (11,), f"card 0000:69:00.0 of node2: {OTHER_SMC}"),
        ((change_gpu(MI300X, 3, **SMC),), (3,), f"card 0000:69:00.0 of node1: {OTHER_SMC}"),
        (
            (MI300X, MI300X, WHOLE), ALL_OF_NODE3,
            "8 cards of node3: vbios 113-M3000100-103; most have vbios 113-M3000100-102",
        ),
        (
            (MI300X, WHOLE), tuple(range(16)),
            "8 cards of node1: vbios 113-M3000100-102; 8 cards of node2: vbios 113-M3000100-103",
        ),
    ],
)  # fmt: skip
def test_gpus_with_other_firmware_are_named(rocm, judge, machines, ranks, message):
    said = judge(rocm(*machines))
    (finding,) = said.findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-firmware-differs", "warning", ranks)
    assert finding.message == message
    assert said.verdict.exit_code == 0


@pytest.mark.parametrize("fields", [{"firmware": {}}, {"vbios": ""}, {"firmware": {}, "vbios": ""}])
def test_firmware_that_cannot_be_read_is_not_taken_for_another(rocm, judge, fields):
    assert judge(rocm(MI300X, change_gpu(MI300X, 3, **fields))).findings == ()


def test_other_models_have_other_firmware(rocm, judge):
    machine = MI300X._replace(gpus=tuple(gpu._replace(device="0x74a5", **VBIOS) for gpu in MI300X.gpus))
    assert {f.rule for f in judge(rocm(MI300X, machine)).findings} == {"gpu-mixed-models"}


@pytest.mark.parametrize(
    ("clocks", "words"),
    [
        (gpu_facts.HARDWARE_THERMAL, "slowed down by PROCHOT, 42 C of 100 C"),
        (gpu_facts.SOFTWARE_THERMAL, "slowed down by heat, 42 C of 100 C"),
    ],
)
def test_what_the_firmware_slows_down_is_found_at_its_gpu(rocm, change, judge, clocks, words):
    job = with_clocks(rocm(MI300X, MI300X), change, clocks)
    (finding,) = judge(job).findings
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-thermal-throttle", "warning", (11,))
    assert finding.message == f"node2: GPU 3 (0000:69:00.0): {words}"
    assert judge(with_clocks(rocm(MI300X, MI300X), change, 0))[:2] == ((), ())


def test_a_layout_that_is_not_known_is_not_checked(rocm, change, judge):
    unknown = Missing(reason="amdgpu: gpu_metrics of revision 1.10 with 1200 bytes is not known")
    said = judge(with_clocks(rocm(MI300X, MI300X), change, unknown))
    assert not said.findings
    assert {(n.rule, n.nodes, n.reason) for n in said.not_checked} == {
        ("gpu-thermal-throttle", ("node2",), f"GPU 3 (0000:69:00.0): {unknown.reason}")
    }


def test_slowed_down_under_load_is_found_with_its_time(rocm, change, judge):
    load = GpuLoad(seconds=5.0, hardware_thermal_seconds=3.0, software_thermal_seconds=0.0, temperature_celsius=60)
    job = with_gpu_3(rocm(MI300X, MI300X), change, load=load)
    (finding,) = judge(job).findings
    assert finding.message.endswith("slowed down by PROCHOT for 3.0 of 5.0 s of the collectives' run, up to 60 C")


def test_the_kernels_own_driver_has_the_kernels_version(rocm):
    assert rocm(MI250X).nodes[0].gpus.driver == "of Linux 6.8.0-45-generic"


@pytest.mark.parametrize(
    ("unopened", "command"),
    [
        ({"/dev/kfd": "Permission denied, mode 660, group 109 (render)"}, 'sudo usermod -aG render,video "$USER"'),
        ({"/dev/dri/renderD128": "Permission denied, mode 660, group 109"}, 'sudo usermod -aG render,video "$USER"'),
        ({"/dev/kfd": "Operation not permitted, mode 666, group 0 (root)"}, "# add to docker run: --device=/dev/kfd"),
        ({"/dev/kfd": "No such file or directory"}, "# add to docker run: --device=/dev/kfd"),
    ],
)
def test_device_files_that_cannot_be_opened_are_named_with_the_reason(rocm, change, judge, unopened, command):
    job = rocm(MI300X, MI300X)
    (file, why), gpus = *unopened.items(), job.nodes[1].gpus
    one = change.node(job, 1, gpus=change.job(gpus, unopened=unopened))
    said = judge(one)
    (finding,) = said.findings
    assert (finding.rule, finding.scope, finding.ranks, finding.nodes) == ("gpu-kfd-denied", "node", ALL, ("node2",))
    assert finding.message == f"node2: cannot open {file}: {why}; HIP needs it"
    assert any(text.startswith(command) for text in finding.fix.commands)
    assert said.verdict.exit_code == 20  # another user may be allowed to
    both = change.node(one, 0, gpus=change.job(job.nodes[0].gpus, unopened=unopened))
    said = judge(both)
    (finding,) = said.findings
    assert (finding.nodes, said.verdict.exit_code) == (("node1", "node2"), 30)


def test_a_container_without_any_device_file_is_one_finding(rocm, judge):
    gpus = tuple(gpu._replace(render=False) for gpu in MI300X.gpus)
    (finding,) = judge(rocm(MI300X._replace(kfd=False, gpus=gpus))).findings
    assert finding.rule == "gpu-kfd-denied"
    assert finding.message == (
        "node1: cannot open /dev/kfd, and 8 more device files: No such file or directory; HIP needs it"
    )


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("amdgpu: the kernel module is not loaded", 40),
        ("amdgpu did not answer within 10 s: a GPU or its driver hangs", 20),
    ],
)
def test_a_driver_that_is_not_loaded_or_hangs_is_found(rocm, change, judge, reason, code):
    job = change.node(rocm(MI300X, MI300X), 1, gpus=Missing(reason=reason))
    said = judge(job)
    (finding,) = [f for f in said.findings if f.severity == "error"]
    assert (finding.rule, finding.message) == ("gpu-amdgpu-failed", f"node2: {reason}")
    assert said.verdict.exit_code == code


def said_by_driver(kind, pci="0000:69:00.0", ago=60.0):
    return (DriverError(kind, pci, ago, "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"),)


@pytest.mark.parametrize(
    ("errors", "severity", "words"),
    [
        (
            said_by_driver("hang"),
            "warning",
            "GPU 3 (0000:69:00.0): the GPU did not finish its work 1 min ago: ring gfx",
        ),
        (said_by_driver("uncorrectable"), "error", "an uncorrectable hardware error 1 min ago"),
        (said_by_driver("reset failed") + said_by_driver("hang"), "error", "; also the GPU did not"),
        (
            said_by_driver("hang", pci=""),
            "warning",
            "errors of GPUs that are not listed: a GPU: the GPU did not finish",
        ),
        (
            said_by_driver("start", pci="0000:99:00.0"),
            "info",
            "errors of GPUs that are not listed: 0000:99:00.0: the dr",
        ),
    ],
)
def test_the_drivers_errors_in_the_kernel_log_are_found_at_their_gpu(rocm, change, judge, errors, severity, words):
    job = change.node(rocm(MI300X, MI300X), 1, driver_errors=errors)
    said = judge(job)
    (finding,) = said.findings
    assert (finding.rule, finding.severity, finding.nodes) == ("gpu-amdgpu-error-recent", severity, ("node2",))
    assert words in finding.message
    assert said.verdict.exit_code != 40


def test_an_error_of_the_day_before_and_one_that_the_counters_show_do_not_decide(rocm, change, judge):
    assert not judge(change.node(rocm(MI300X), 0, driver_errors=said_by_driver("hang", ago=8000.0))).findings
    failing = rocm(change_gpu(MI300X, 3, errors={"umc": "ue: 3\nce: 0"}))
    said = judge(change.node(failing, 0, driver_errors=said_by_driver("uncorrectable")))
    assert [(f.rule, f.severity) for f in said.findings] == [
        ("gpu-ecc-uncorrected", "error"),
        ("gpu-amdgpu-error-recent", "info"),
    ]


def test_an_adapter_far_away_is_found_where_rccls_setting_excludes_the_near_one(rocm, judge):
    said = judge(rocm(MI300X, MI300X, NCCL_IB_HCA="mlx5_7"))
    finding = next(f for f in said.findings if f.rule == "gpu-far-from-nic")
    assert finding.severity == "warning"
    assert "mlx5_0" in finding.message
    assert "amd-smi topology" in finding.fix.commands


def test_the_setting_may_stand_in_rccl_conf_which_nccl_does_not_read(rocm, judge, change):
    def in_file(library, path):
        own = NcclFile(path=path, origin="system", library=library, lines=("NCCL_IB_HCA=mlx5_7",))
        return change.process(rocm(MI300X, MI300X), None, nccl_files=(own,))

    assert "gpu-far-from-nic" in [f.rule for f in judge(in_file("rccl", "/etc/rccl.conf"), "gpu.affinity").findings]
    assert not judge(in_file("nccl", "/etc/nccl.conf"), "gpu.affinity").findings


@pytest.mark.parametrize(
    ("backend", "torch", "rules"),
    [
        ("nccl", TorchBuild("2.9.0+cu128", cuda="12.8", hip=None), ["sw-torch-cpu-build"]),
        ("nccl", TorchBuild("2.9.0+cpu", cuda=None, hip=None), ["sw-torch-cpu-build"]),
        ("nccl", ROCM, []),
        ("auto", TorchBuild("2.9.0+cpu", cuda=None, hip=None), []),
        ("gloo", ROCM, []),
    ],
)
def test_a_torch_for_other_gpus_is_an_error_where_nccl_is_asked_for(rocm, change, judge, backend, torch, rules):
    job = change.asked(rocm(MI300X, MI300X), backend=backend)
    for n in range(2):
        job = change.node(job, n, torch=torch)
    job = change.process(job, None, installed=change.job(job.processes[0].installed, torch=torch))
    findings = judge(job, "gpu.driver").findings
    assert [f.rule for f in findings] == rules
    assert all("built without ROCm" in f.message for f in findings)
