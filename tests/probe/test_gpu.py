"""The real nvidia-ml-py in a real child process, on a fake library with the test's values."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from made.nvml_jobs import PROFILES

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.probe import gpu

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100 = PROFILES["dgx_h100"]


def test_a_node_of_eight_h100(ask):
    answer = ask(H100)
    assert isinstance(answer, Gpus)
    assert (answer.driver, answer.cuda_driver, len(answer.devices)) == ("550.54.15", "12.4", 8)
    assert [device.index for device in answer.devices] == list(range(8))
    assert [device.pci for device in answer.devices] == [f"0000:{bus}:00.0" for bus in BUSES]
    last = answer.devices[7]
    assert last.uuid == "GPU-00000007-aaaa-bbbb-cccc-dddddddddddd"
    assert last.name == "NVIDIA H100 80GB HBM3"
    assert (last.memory_bytes, last.memory_used_bytes) == (85520809984, 1048576)
    assert (last.mig, last.mig_uuids, last.lost) == (False, (), "")


@pytest.mark.parametrize(("others", "read"), [(0, True), (4, False), (8, False), (9, True)])
def test_one_process_reads_the_health_for_all_unless_it_sees_fewer_gpus(ask, others, read):
    answer = ask(H100, others=others)
    assert len(answer.devices) == 8
    assert [device.health is not None for device in answer.devices] == [read] * 8
    assert answer.unread == ""


DENIED = Missing(reason="NVML error 4: no permission to use the NVIDIA driver")
NOT_SUPPORTED = Missing(reason="NVML error 3: Not Supported")


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("memory.used !3", "memory_bytes", NOT_SUPPORTED),  # a GPU without its own memory
        ("memory.used !3", "memory_used_bytes", NOT_SUPPORTED),
        ("memory.reserved !13", "memory_used_bytes", 581828608),  # a driver that does not separate reserved memory
        ("mig !3", "mig", False),
        ("name !15", "lost", "NVML error 15: a GPU is lost: it fell off the bus or is unreachable"),
        ("handle !999", "lost", "NVML error 999: unknown error"),
        ("handle !4", "lost", ""),  # a GPU of another job
        ("handle !4", "uuid", DENIED),
    ],
)
def test_what_nvml_refuses_of_one_gpu_is_said_of_that_gpu_alone(ask, line, field, value):
    answer = ask(H100 + f"5.{line}\n")
    assert getattr(answer.devices[5], field) == value
    assert getattr(answer.devices[1], field) == getattr(ask(H100).devices[1], field)


def test_mig_devices_are_named_and_empty_slots_are_skipped(ask):
    answer = ask(H100 + "2.mig 1\n2.mig.slots 7\n2.0.uuid MIG-aaaa\n2.3.uuid MIG-bbbb\n")
    assert (answer.devices[2].mig, answer.devices[2].mig_uuids) == (True, ("MIG-aaaa", "MIG-bbbb"))
    assert answer.devices[3].mig is False


@pytest.mark.parametrize("key", ["driver", "cuda"])
def test_a_node_fact_without_permission_is_missing(ask, key):
    answer = ask(H100 + f"{key} !4\n")
    assert isinstance(answer, Gpus)
    assert isinstance(answer.driver if key == "driver" else answer.cuda_driver, Missing)


@pytest.mark.parametrize("key", ["uuid", "pci", "name", "mig"])
def test_a_gpu_fact_without_permission_is_missing(ask, key):
    device = ask(H100 + f"4.{key} !4\n").devices[4]
    missing = {name: value for name in device.__struct_fields__ if isinstance(value := getattr(device, name), Missing)}
    assert missing == {key: DENIED}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4, "no permission to use the NVIDIA driver"),
        (9, "the NVIDIA kernel module is not loaded"),
        (12, "NVIDIA's driver library is not installed: libnvidia-ml.so.1 was not found"),
        (18, "driver/library version mismatch"),
        (999, "unknown error"),
        (4242, "fake error 4242"),
    ],
)
def test_each_start_error_has_its_text_and_number(ask, code, words):
    answer = ask(H100 + f"init !{code}\n")
    assert isinstance(answer, Missing)
    assert answer.reason.startswith(f"NVML error {code}: ")
    assert words in answer.reason
    assert gpu.error_code(answer.reason) == code


def test_gpus_that_cannot_be_counted_are_missing(ask):
    assert ask(H100 + "count !999\n") == Missing(reason="NVML error 999: unknown error")


@pytest.mark.process
def test_a_damaged_library_is_another_reason_than_none(tmp_path, monkeypatch):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reason = asyncio.run(gpu.gpus(30.0)).reason
    assert reason.startswith(f"NVML error 12: NVIDIA's driver library cannot be loaded: {tmp_path}/libnvidia-ml.so.1: ")


@pytest.fixture
def born(monkeypatch):
    """The child processes that were started."""
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    return started


@pytest.mark.parametrize("key", ["init", "7.name"])
def test_a_hang_ends_at_the_deadline_and_leaves_no_process(ask, born, key):
    began = time.monotonic()
    answer = ask(H100 + f"{key} hang\n", timeout=1.0)
    assert answer == Missing(reason="NVML did not answer within 1 s: a GPU or its driver hangs")
    assert 1.0 <= time.monotonic() - began < 10
    assert born[0].returncode == -signal.SIGKILL
    assert not Path(f"/proc/{born[0].pid}").exists()


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_child_that_cannot_be_killed_is_left_behind(ask, monkeypatch):
    spared = []
    killpg = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, _: spared.append(group))
    began = time.monotonic()
    answer = ask(H100 + "init hang\n", timeout=0.5)
    try:
        assert isinstance(answer, Missing)
        assert time.monotonic() - began < 10
    finally:
        killpg(spared[0], signal.SIGKILL)
        os.waitpid(spared[0], 0)


def test_cancelling_ends_the_child(fake_nvml, monkeypatch, born):
    for name, value in fake_nvml.environ("init hang\n").items():
        monkeypatch.setenv(name, value)

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(gpu.gpus(60.0), 0.3)

    asyncio.run(give_up())
    assert born[0].returncode == -signal.SIGKILL


def test_the_child_exits_by_itself_without_a_parent(fake_nvml):
    command = [sys.executable, "-m", "distcheck.probe.child", "distcheck.probe.gpu", "collect", "1"]
    done = subprocess.run(command, env=fake_nvml.environ("init hang\n"), check=False, timeout=30)
    assert done.returncode == -signal.SIGALRM


def test_a_crash_is_named(ask):
    answer = ask(H100 + "2.uuid crash\n")
    assert answer == Missing(reason="NVML crashed the process that queried it: SIGSEGV")


@pytest.mark.parametrize(
    ("script", "words"),
    [('echo \'{"fact": "gpus"}\'; echo hello; exit 3', "no answer (exit code 3): hello"), ("exit 0", "no output")],
)
def test_garbage_and_no_output_are_no_answer(ask, other_python, script, words):
    other_python(script)
    assert words in ask(H100).reason


def test_an_answer_among_other_output_is_found(ask, other_python):
    line = msgspec.json.encode(Gpus("1", "2", ())).decode()
    other_python(f"echo welcome; echo '{line}'; echo 'a warning' >&2")
    assert ask(H100) == Gpus("1", "2", ())


def test_a_missing_python_is_a_reason(ask, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert ask(H100).reason.startswith("could not start the process that queries NVML")


def test_a_process_restricted_to_its_own_gpus_is_recognised(tmp_path):
    denied = Missing(reason="NVML error 4: Insufficient Permissions")
    mine = [Gpu(n, f"GPU-{n}", f"0000:0{n}:00.0", "H100", 80, 0) for n in range(2)]
    theirs = [Gpu(n, denied, denied, denied, denied, denied) for n in (2, 3)]

    def reads(devices):
        return gpu._is_ours_to_examine(Gpus("580", "13.0", tuple(devices)), 2, tmp_path)

    assert not reads(mine)
    assert not reads([*mine, *theirs])
    assert reads([mine[0], *theirs])
    for n in range(4):
        put(tmp_path, f"sys/bus/pci/devices/0000:0{n}:00.0/vendor", "0x10de\n")
        put(tmp_path, f"sys/bus/pci/devices/0000:0{n}:00.0/class", "0x030200\n")
    assert reads(mine)
    assert not reads(
        [msgspec.structs.replace(each, index=n, uuid=f"GPU-{n}") for n, each in enumerate([*mine, *theirs])]
    )


# -- whose GPUs a node shows


def put(root, path, text=""):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_device_files_that_this_user_may_not_open_are_found(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}")
    monkeypatch.setattr(gpu.os, "access", lambda path, mode: path.name == "nvidia0" and mode == os.R_OK | os.W_OK)
    assert gpu.denied(tmp_path) == ("/dev/nvidia1",)


def card(vendor, kind):
    return {
        f"sys/bus/pci/devices/0000:9b:00.0/{name}": f"{text}\n" for name, text in (("vendor", vendor), ("class", kind))
    }


def kfd(simd_count):
    node = "sys/class/kfd/kfd/topology/nodes/0/properties"
    return {"dev/kfd": "", node: f"cpu_cores_count 8\nsimd_count {simd_count}\n"}


@pytest.mark.parametrize(
    ("files", "whose"),
    [
        ({"dev/null": ""}, "none"),
        ({"dev/nvidiactl": ""}, "nvidia"),
        ({"proc/driver/nvidia/version": ""}, "nvidia"),
        (card("0x10de", "0x030200"), "nvidia"),
        (card("0x10de", "0x030000"), "nvidia"),
        (card("0x10de", "0x040300"), "none"),  # the sound device of a graphics card
        (card("0x10de", "0x068000"), "none"),  # an NVSwitch
        (card("0x1002", "0x038000"), "amd"),
        (card("0x1002", "0x120000"), "amd"),
        (card("0x1002", "0x030000"), "none"),  # the display of many a server board
        (card("0x8086", "0x030000"), "none"),
        (kfd("608"), "amd"),
        (kfd("0"), "none"),
    ],
)
def test_drivers_and_the_pci_bus_show_whose_gpus_a_node_has(tmp_path, files, whose):
    for path, text in files.items():
        put(tmp_path, path, text)
    # With a name that is too long, as with a folder that may not be entered, Path.exists raises.
    assert gpu.accelerator(tmp_path, {"LD_LIBRARY_PATH": "/" + "a" * 300}) == whose


def test_a_library_from_the_container_runtime_is_not_enough(tmp_path):
    put(tmp_path, "opt/lib/libnvidia-ml.so.1")
    environ = {"LD_LIBRARY_PATH": ":/nowhere:/opt/lib"}
    assert gpu.accelerator(tmp_path, {"LD_LIBRARY_PATH": "/nowhere"}) == "none"
    assert gpu.accelerator(tmp_path, environ) == "nvidia"
    assert gpu.accelerator(tmp_path, environ, Gpus("1", "2", ())) == "nvidia"
    assert gpu.accelerator(tmp_path, environ, Missing(reason="NVML error 18: mismatch")) == "nvidia"
    assert gpu.accelerator(tmp_path, environ, Missing(reason="NVML error 9: no driver")) == "none"


def test_a_device_outweighs_nvmls_answer(tmp_path):
    put(tmp_path, "dev/nvidiactl")
    assert gpu.accelerator(tmp_path, {}, Missing(reason="NVML error 9: no driver")) == "nvidia"


def test_a_counter_with_every_bit_set_is_missing_and_affects_no_other(ask):
    """The kernel and NVML return such a number for a value of a broken GPU."""
    found = ask(H100 + f"0.ecc.1.0 {(1 << 64) - 1}\n0.reasons {1 << 63}\n")
    assert isinstance(found, Gpus)
    health = found.devices[0].health
    assert health is not None
    assert isinstance(health.ecc.uncorrected_volatile, Missing)
    assert "every bit is set" in health.ecc.uncorrected_volatile.reason
    assert health.clocks.event_reasons == 1 << 63
