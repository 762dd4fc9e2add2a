"""The condition of a GPU, read by the real nvidia-ml-py from a fake library."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest
from made.nvml_jobs import PROFILES

from distcheck.facts.base import Missing
from distcheck.facts.gpu import (
    NOT_SUPPORTED,
    Ecc,
    Fabric,
    GpuClocks,
    GpuHealth,
    GpuProcess,
    LinkErrors,
    NvLinks,
    PcieLink,
    PeerAccess,
    RemappedRows,
)
from distcheck.probe import gpu_health

H200 = PROFILES["h200"]
A100 = PROFILES["dgx_a100"]
GH200 = PROFILES["gh200"]
ALONE = "count 1\n"


@pytest.fixture
def health(ask):
    """Return the condition of the only GPU that `text` describes."""
    return lambda text: ask(text + ALONE).devices[0].health


# All values differ, so that a field in the wrong place of a structure is noticed.
DISTINCT = """
driver 580.65.06
cuda 13000
count 1
uuid GPU-1
pci 00000000:1B:00.0
name NVIDIA X
memory.total 4000
memory.used 300
memory.reserved 200
field.230 type 1 4
ecc 1
ecc.pending 0
ecc.1.0 12
rows 21 22 1 0
retired.pending 1
reasons 0x80000000000000c1
clock.application.0 33
clock.application_default.0 34
field.269 1500000000
field.270 type 2 2500000000
field.271 type 0 3.5e9
pcie.width 8
pcie.max_gen 4
pcie.max_width 16
pcie.replays 41
links 3
link.state.0 1
link.state.1 0
link.state.2 1
link.remote.0 2
link.remote.2 7
link.version 6
field.164 type 1 26562
field.161.0 51
field.161.2 52
field.162 0
field.163.2 type 4 53
fabric.state 3
fabric.status 999
fabric.cluster 00112233445566778899aabbccddeeff
fabric.clique 61
fabric.mask 0x1aa
fabric.summary 3
power.limit 401500
power.default 700000
temperature.0 71
temperature.threshold.1 87
compute_mode 3
processes 4711:1024 4712:-
mps_processes 4713:1
display 1
vbios 96.00.A5.00.01
cpus 0-3,63-64,200
numa 2
own_numa 9
confidential 1
"""


def test_every_value_is_stored_in_its_field(ask):
    answer = ask(DISTINCT)
    assert answer.devices[0].health == GpuHealth(
        recovery_action=4,
        ecc=Ecc(
            enabled=True,
            enabled_after_reset=False,
            uncorrected_volatile=12,
        ),
        remapped_rows=RemappedRows(corrected=21, uncorrected=22, pending=True, failure=False),
        retired_pages_pending=True,
        clocks=GpuClocks(
            event_reasons=0x80000000000000C1,
            sm_application_MHz=33,
            sm_application_default_MHz=34,
            software_thermal_seconds=1.5,
            hardware_thermal_seconds=2.5,
            power_brake_seconds=3.5,
        ),
        pcie=PcieLink(width=8, max_generation=4, max_width=16, replays=41),
        nvlinks=NvLinks(
            active=(True, False, True),
            remote=("switch", "unknown", "unknown"),
            version=6,
            speed_MBps=26562,
            errors=(LinkErrors("replay", (51, 0, 52)), LinkErrors("crc", (0, 0, 53))),
        ),
        fabric=Fabric(
            state=3,
            status=999,
            cluster="00112233445566778899aabbccddeeff",
            clique=61,
            health_mask=426,
            health_summary=3,
        ),
        power_limit_watts=401.5,
        power_limit_default_watts=700.0,
        temperature_celsius=71,
        slowdown_celsius=87,
        compute_mode=3,
        processes=(GpuProcess(4711, 1024), GpuProcess(4712, None)),
        mps_processes=(GpuProcess(4713, 1),),
        display=True,
        vbios="96.00.A5.00.01",
        cpus="0-3,63-64,200",
        numa_node=2,
        own_numa_node=9,
    )
    assert answer.confidential_compute is True
    assert answer.imex_channel in {"absent", "denied", "usable"}


def test_unsupported_values_are_not_encoded(ask):
    answer = ask("driver 1\ncuda 12000\ncount 1\nuuid GPU-1\n")
    result = answer.devices[0].health
    assert result == GpuHealth()
    assert result.ecc.uncorrected_volatile == NOT_SUPPORTED
    assert len(msgspec.json.encode(result)) < 120
    assert (answer.peer_access, answer.imex_channel) == ((), None)


def test_every_value_has_its_own_reason(health):
    result = health(
        H200
        + "ecc !4\nrows !999\nfield.230 !15\nfabric.state !999\nlink.state !4\nprocesses !4\nclock.application !4242\n"
    )
    refused = Missing(reason="NVML error 4: no permission to use the NVIDIA driver")
    assert (result.ecc.enabled, result.processes, result.nvlinks) == (refused, refused, refused)
    assert result.remapped_rows == result.fabric == Missing(reason="NVML error 999: unknown error")
    assert result.clocks.sm_application_MHz == Missing(reason="NVML error 4242: fake error 4242")
    assert result.ecc.uncorrected_volatile == 0


def test_unknown_future_values_are_kept(health):
    result = health(
        H200 + "field.230 type 1 99\ncompute_mode 42\nfabric.state 9\nlink.remote 200\nreasons 0xf000000000000000\n"
    )
    assert (result.recovery_action, result.compute_mode, result.fabric.state) == (99, 42, 9)
    assert set(result.nvlinks.remote) == {"unknown"}
    assert result.clocks.event_reasons == 0xF000000000000000
    assert health(H200 + "field.230 type 99 1\n").recovery_action == Missing(
        reason="NVML returned a value of unknown type 99"
    )


def test_old_fabric_structures_are_read(health):
    result = health(H200 + "fabric.version 2\n")
    assert (result.fabric.state, result.fabric.health_mask, result.fabric.health_summary) == (3, 0x1AA, NOT_SUPPORTED)
    result = health(H200 + "fabric.version 1\nfabric.clique 5\n")
    assert result.fabric == Fabric(3, 0, "", 5, health_mask=NOT_SUPPORTED, health_summary=NOT_SUPPORTED)


def test_a_driver_that_refuses_many_fields_is_asked_for_the_gpus_alone(health):
    result = health(H200 + "fields 5\n")
    assert (result.recovery_action, result.clocks.power_brake_seconds) == (0, 0.0)
    assert isinstance(result.nvlinks.speed_MBps, Missing)
    without = health(H200 + "fields !13\n" + "".join(f"link.errors.{n} 0\n" for n in range(4)))
    assert without.recovery_action == Missing(reason="NVML error 13: Function Not Found")
    assert without.nvlinks.errors == ()


def test_unsupported_link_counters_are_missing_and_older_names_of_the_clock_reasons_are_read(health):
    assert health(A100 + "".join(f"link.errors.{n} !4\n" for n in range(4))).nvlinks.errors == Missing(
        reason="NVML error 4: no permission to use the NVIDIA driver"
    )
    assert health(H200 + "reasons !13\nthrottle_reasons 0x20\n").clocks.event_reasons == 0x20


def test_links_end_at_the_first_that_nvml_refuses(health):
    result = health(A100)
    assert (len(result.nvlinks.active), sum(result.nvlinks.active)) == (12, 12)
    assert result.fabric == NOT_SUPPORTED
    assert health(GH200).nvlinks.active == (False,) * 18
    assert health(GH200).own_numa_node == 1


def test_every_pair_of_gpus_is_read_once(ask):
    pairs = ask(H200 + "2.p2p.read.5 4\n6.p2p.nvlink !4\n").peer_access
    assert [pair.gpus for pair in pairs] == [(i, j) for i in range(8) for j in range(i + 1, 8)]
    assert PeerAccess((2, 5), 4, 0, 0) in pairs
    assert [pair.gpus for pair in pairs if isinstance(pair.nvlink, Missing)] == [(6, 7)]


def test_a_lost_gpu_has_no_condition_and_the_others_have(ask):
    answer = ask(H200 + "3.lost yes\n")
    assert [device.index for device in answer.devices if device.health is None] == [3]
    assert all(3 not in pair.gpus for pair in answer.peer_access)
    assert len(answer.peer_access) == 21


@pytest.mark.parametrize("key", ["reasons", "p2p.read"])
def test_gpus_with_unreadable_health_are_still_known(ask, key):
    answer = ask(H200 + f"5.{key} hang\n", timeout=4.0)  # a busy machine needs some of them for all else
    assert answer.unread == "NVML did not answer within 4 s: a GPU or its driver hangs"
    assert [device.uuid[:12] for device in answer.devices] == [f"GPU-0000000{i}" for i in range(8)]
    assert {device.health for device in answer.devices} == {None}


def test_a_crash_while_reading_health_keeps_the_gpus(ask):
    answer = ask(H200 + "5.reasons crash\n")
    assert (len(answer.devices), answer.unread) == (8, "NVML crashed the process that queried it: SIGSEGV")


def test_an_old_binding_has_few_values():
    class NVMLError(Exception):
        pass

    old = SimpleNamespace(
        NVMLError=NVMLError, nvmlDeviceGetComputeMode=lambda _: 0, nvmlDeviceGetNumaNodeId=lambda _handle, _node: 0
    )
    result = gpu_health.read(old, object())
    assert result.compute_mode == 0
    for value in (result.recovery_action, result.fabric, result.own_numa_node):
        assert "this version of nvidia-ml-py does not support it" in value.reason
    assert gpu_health.confidential_compute(old).reason.startswith("this version of nvidia-ml-py")


def test_the_imex_channel_is_usable_denied_or_absent(tmp_path):
    assert gpu_health.imex_channel(tmp_path) == "absent"
    channel = tmp_path / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir(parents=True)
    channel.write_text("")
    assert gpu_health.imex_channel(tmp_path) == "usable"
    channel.chmod(0)
    assert gpu_health.imex_channel(tmp_path) == ("usable" if os.geteuid() == 0 else "denied")


@pytest.mark.parametrize(("name", "runs"), [("nvidia-cuda-mps", True), ("nvidia-persiste", False)])
def test_the_mps_daemon_is_found_by_its_name(tmp_path, name, runs):
    (tmp_path / "proc/17").mkdir(parents=True)
    (tmp_path / "proc/17/comm").write_text(name + "\n")
    (tmp_path / "proc/16").mkdir()
    (tmp_path / "proc/16/comm").write_bytes("12345678901234é".encode()[:15] + b"\n")  # cut inside a letter
    assert gpu_health.mps_daemon(tmp_path) is runs
