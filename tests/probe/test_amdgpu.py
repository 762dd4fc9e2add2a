"""What KFD's, DRM's and the PCI bus's files say of AMD GPUs, from made-up trees."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys

import pytest
from made import amd, machines

from distcheck.facts import gpu as gpu_facts
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus, XgmiPeer, usable_name
from distcheck.probe import amdgpu, amdgpu_health, gpu, pci


@pytest.fixture
def read(tmp_path):
    """Return the GPUs of a machine with their condition."""

    def read(machine):
        root = amd.write(tmp_path / "root", machine)
        found = amdgpu.collect(root)
        assert isinstance(found, Gpus), found
        return amdgpu_health.examine(found, root)

    return read


def test_a_gpu_is_named_by_its_unique_id_address_and_model(read):
    found = read(amd.MI300X)
    assert (found.driver, found.unopened, len(found.devices)) == ("6.12.12", {}, 8)
    fourth = found.devices[3]
    assert (fourth.index, fourth.uuid, fourth.pci) == (3, "GPU-a1b2000000000013", "0000:69:00.0")
    assert (fourth.name, fourth.memory_bytes, fourth.mig) == ("AMD Instinct MI300X", 206141652992, False)
    assert fourth.memory_used_bytes == 297795584


def test_the_condition_is_read_from_the_files_of_each_gpu(read):
    health = read(amd.MI300X).devices[3].health
    assert (health.temperature_celsius, health.slowdown_celsius) == (42, 100)
    assert (health.power_limit_watts, health.power_limit_default_watts) == (750.0, 750.0)
    assert (health.pcie.width, health.pcie.max_width, health.pcie.max_generation, health.pcie.replays) == (16, 16, 5, 0)
    assert (health.ecc.uncorrected_volatile, health.retired_pages_pending, health.processes) == (0, False, ())
    assert health.vbios == "113-M3000100-102"
    assert health.amd.firmware == {"vbios": health.vbios, "mec": "0x0000009f", "smc": "0x00557500"}
    assert (health.amd.compute_partition, health.amd.memory_partition) == ("SPX", "NPS1")
    assert XgmiPeer("0000:0c:00.0", hops=1, MBps=50000) in health.amd.xgmi
    assert len(health.amd.xgmi) == 7


def test_the_dies_of_an_mi250x_are_gpus_of_their_own_and_reach_some_others_in_two_hops(read):
    found = read(amd.MI250X)
    assert found.driver == "of Linux 6.8.0-45-generic"
    assert found.devices[0].uuid == "GPU-0123456789abcd00"  # leading zeros are kept
    second = found.devices[1].health
    assert second.power_limit_watts == 0.0  # normal
    assert second.amd.compute_partition == ""
    assert XgmiPeer("0000:c1:00.0", hops=1, MBps=200000) in second.amd.xgmi
    assert XgmiPeer("0000:c9:00.0", hops=2, MBps=0) in second.amd.xgmi


def test_the_partitions_of_a_card_are_gpus_with_one_address_and_names_of_their_own(read):
    found = read(amd.CPX)
    assert [g.uuid for g in found.devices] == [f"GPU-a1b2000000000010/{n}" for n in range(8)]
    assert {g.pci for g in found.devices} == {"0000:0c:00.0"}
    assert {g.memory_bytes for g in found.devices} == {25769803776}


@pytest.mark.parametrize("unique_id", [0xA1B2_0000_0000_0010, 0])
def test_partitions_of_which_each_process_sees_its_own_are_eight_gpus(tmp_path, unique_id):
    views = []
    for own in range(8):
        parts = (gpu._replace(unique_id=unique_id, render=n == own) for n, gpu in enumerate(amd.CPX.gpus))
        views.append(amdgpu.collect(amd.write(tmp_path / str(own), amd.CPX._replace(gpus=tuple(parts)))))
    assert [len(view.devices) for view in views] == [1] * 8
    assert len({usable_name(view.devices[0]) for view in views}) == 8


def test_an_older_kernel_has_the_partition_in_the_place_of_the_function(tmp_path):
    root = amd.write(tmp_path, amd.CPX)
    for file in root.glob("sys/devices/virtual/kfd/kfd/topology/nodes/*/properties"):
        lines = dict(line.split() for line in file.read_text().splitlines())
        place = int(lines.get("location_id", 0))
        lines["location_id"] = str(place & 0xFFFF | place >> 28)
        file.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    found = amdgpu.collect(root)
    assert [g.uuid for g in found.devices] == [f"GPU-a1b2000000000010/{n}" for n in range(8)]
    assert {g.pci for g in found.devices} == {"0000:0c:00.0"}


def test_a_virtual_function_without_an_id_is_named_by_its_address(read):
    found = read(amd.change(amd.MI300X, 3, unique_id=0))
    assert found.devices[3].uuid == Missing(reason="amdgpu reports no unique id")


def test_an_unknown_model_has_the_boards_name_or_its_number(tmp_path):
    machine = amd.change(amd.MI300X, 3, device="0x7abc")
    root = amd.write(tmp_path, machine)
    assert amdgpu.collect(root).devices[3].name == "AMD GPU 0x7abc"
    (root / "sys/bus/pci/devices/0000:69:00.0/product_name").write_text("AMD Instinct MI999\n")
    assert amdgpu.collect(root).devices[3].name == "AMD Instinct MI999"


def test_the_width_is_that_of_the_slot_above_the_cards_own_switch(tmp_path):
    root = amd.write(tmp_path, amd.change(amd.MI300X, 3, width=8))
    found = amdgpu_health.examine(amdgpu.collect(root), root)
    assert (root / "sys/bus/pci/devices/0000:69:00.0/current_link_width").read_text() == "16\n"
    assert [g.health.pcie.width for g in found.devices] == [16, 16, 16, 8, 16, 16, 16, 16]


@pytest.mark.parametrize(("text", "generation"), [("Unknown", None), ("16 GT/s", 4), ("16.0 GT/s PCIe", 4)])
def test_the_speed_of_a_link_has_several_forms(tmp_path, text, generation):
    root = amd.write(tmp_path, amd.MI250X)
    for folder in (root / "sys/devices").glob("pci0000:c0/*/0000:c1:00.0"):
        (folder / "max_link_speed").write_text(f"{text}\n")
        (folder.parent / "max_link_speed").write_text(f"{text}\n")
    most = amdgpu_health.examine(amdgpu.collect(root), root).devices[0].health.pcie.max_generation
    assert most == generation or (generation is None and isinstance(most, Missing))


def test_a_process_counts_where_it_has_memory(read):
    found = read(amd.change(amd.MI300X, 3, users={4711: 5 << 30}))
    held = [[(p.pid, p.memory_bytes) for p in g.health.processes] for g in found.devices]
    assert held == [[], [], [], [(4711, 5 << 30)], [], [], [], []]


def test_a_gpu_without_its_device_file_is_left_out_as_hip_does(read):
    found = read(amd.change(amd.MI300X, 3, render=False))
    assert [g.pci for g in found.devices] == [gpu.path[-1] for n, gpu in enumerate(amd.MI300X.gpus) if n != 3]
    assert [g.index for g in found.devices] == list(range(7))
    assert not any(g.lost for g in found.devices)
    assert found.unopened == {}


@pytest.fixture
def refusing(monkeypatch):
    """Let some files refuse to be opened."""

    def refusing(number, *names):
        real = os.open

        def opened(path, *arguments, **more):
            if any(str(path).endswith(name) for name in names):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **more)

        monkeypatch.setattr(os, "open", opened)

    return refusing


def test_files_that_permissions_close_are_named_and_hide_no_gpu(read, refusing):
    refusing(errno.EACCES, "/kfd", "renderD128")
    found = read(amd.MI300X)
    assert len(found.devices) == 8
    assert list(found.unopened) == ["/dev/kfd", "/dev/dri/renderD128"]
    assert found.unopened["/dev/kfd"].startswith("Permission denied, mode ")


def test_gpus_that_a_device_cgroup_denies_are_left_out(read, refusing):
    refusing(errno.EPERM, *(f"nodes/{n}/gpu_id" for n in range(3, 10)))
    found = read(amd.MI300X)
    assert [(g.index, g.pci) for g in found.devices] == [(0, "0000:0c:00.0")]
    assert found.unopened == {}


def test_where_all_files_are_denied_the_first_is_named(read, refusing):
    refusing(errno.EPERM, "dev/kfd", *(f"renderD{128 + 8 * n}" for n in range(8)))
    found = read(amd.MI300X)
    assert found.devices == ()
    assert list(found.unopened)[:2] == ["/dev/kfd", "/dev/dri/renderD128"]


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"in_kfd": False, "driver": ""}, ["amdgpu: no driver is bound to it"]),
        ({"in_kfd": False}, ["amdgpu: the driver did not start it"]),
        ({"in_kfd": False, "driver": "vfio-pci"}, []),
    ],
)
def test_a_gpu_on_the_bus_that_kfd_lacks_is_lost_unless_it_is_lent(read, fields, lost):
    found = read(amd.change(amd.MI300X, 3, **fields))
    assert [g.lost for g in found.devices if g.lost] == lost
    assert [(g.index, g.pci) for g in found.devices if g.lost] == [(7, "0000:69:00.0")] * len(lost)


def without_kfd(root):
    shutil.rmtree(root / "sys/devices/virtual/kfd")
    for file in (root / "sys/class/kfd/kfd", root / "dev/kfd"):
        file.unlink()
    return root


def test_a_driver_without_kfd_has_lost_its_cards_for_compute(tmp_path):
    found = amdgpu.collect(without_kfd(amd.write(tmp_path, amd.MI300X)))
    assert {(g.name, g.lost) for g in found.devices} == {
        ("AMD Instinct MI300X", "amdgpu: the driver runs without KFD, which HIP needs")
    }
    assert (len(found.devices), found.unopened) == (8, {})


def test_graphics_without_kfd_are_no_loss(tmp_path):
    machine = amd.MI300X._replace(gpus=tuple(gpu._replace(device="0x743f") for gpu in amd.MI300X.gpus))
    assert amdgpu.collect(without_kfd(amd.write(tmp_path, machine))).devices == ()


def test_a_driver_that_is_not_loaded_for_a_card_for_compute_names_it(tmp_path):
    root = without_kfd(amd.write(tmp_path, amd.MI250X))
    shutil.rmtree(root / "sys/module/amdgpu")
    assert amdgpu.collect(root) == Missing(reason="amdgpu: the kernel module is not loaded for AMD Instinct MI250X")


def test_a_driver_that_is_not_loaded_is_a_reason(tmp_path):
    (tmp_path / "sys").mkdir()
    assert amdgpu.collect(tmp_path) == Missing(reason="amdgpu: the kernel module is not loaded")


def test_the_places_on_the_bus_are_those_of_nvidias_gpus(tmp_path):
    found = pci.collect(amd.write(tmp_path.resolve(), amd.MI300X))
    assert list(found.gpus) == [gpu.path[-1] for gpu in amd.MI300X.gpus]
    assert [place.numa_node for place in found.gpus.values()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.gpus["0000:0c:00.0"].cpus == "0-55,112-167"


@pytest.mark.parametrize(("machine", "vendor"), [(amd.MI300X, "amd"), (amd.MI250X, "amd"), (amd.CPX, "amd")])
def test_the_vendor_is_known_by_kfd_and_by_the_bus(tmp_path, machine, vendor):
    assert gpu.accelerator(amd.write(tmp_path / "both", machine), {}) == vendor
    bus = tmp_path / "bus"
    amd.write(bus, machine)
    for folder in sorted((bus / "sys/class/kfd").iterdir()):
        folder.unlink()
    assert gpu.accelerator(bus, {}) == vendor


@pytest.mark.parametrize("machine", [machines.DGX_H100, machines.DGX_H100._replace(cards=())], ids=["nvidia", "cpu"])
def test_another_node_pays_one_look_up_that_fails(tmp_path, machine):
    root, looked = machines.write(tmp_path, machine), []

    def note(event, arguments):
        if event in {"open", "os.listdir", "os.scandir"} and "kfd" in str(arguments[0]):
            looked.append(arguments[0])

    sys.addaudithook(note)
    gpu.accelerator(root, {})
    assert len(looked) <= 1
    assert not (root / gpu.KFD).exists()


def test_every_file_of_a_gpu_may_be_absent_or_hold_anything(tmp_path):
    machine = amd.MI300X._replace(gpus=amd.MI300X.gpus[:2], nics=())
    root = amd.write(tmp_path, machine)
    files = [file for file in root.rglob("*") if file.is_file() and not file.is_symlink()]
    ours = {file for file in files if "kfd" in file.parts or machine.gpus[0].path[-1] in file.parts}
    assert len(ours) > 40
    for number, file in enumerate(sorted(ours)):
        kept = file.read_bytes()
        file.write_bytes((b"", b"\xff\xfe\n", b"-1\n", b"a b\nc\n")[number % 4])
        for _ in range(2):  # garbled, then absent
            found = amdgpu.collect(root)
            assert isinstance(found, Gpus)
            amdgpu_health.examine(found, root)
            file.unlink(missing_ok=True)
        file.write_bytes(kept)


def test_the_watch_keeps_what_grew_while_it_looked(tmp_path):
    root = amd.write(tmp_path, amd.MI300X)
    device = root / "sys/bus/pci/devices/0000:69:00.0"
    uuids, steps = [f"GPU-a1b200000000001{n}" for n in range(4)], iter((False, False, True))

    def wait(seconds):
        (device / "hwmon/hwmon6/temp2_input").write_text("103000\n")
        (device / "ras/umc_err_count").write_text("ue: 2\nce: 0\n")
        (device / "pcie_replay_count").write_text("70\n")
        return next(steps)

    found = amdgpu_health.watch(root, uuids, wait)
    assert list(found.gpus) == uuids
    hot, cool = found.gpus[uuids[3]], found.gpus[uuids[0]]
    assert (hot.temperature_celsius, hot.uncorrected_ecc, hot.replays, hot.busy) == (103, 2, 70, 2)
    assert (cool.temperature_celsius, cool.uncorrected_ecc, cool.replays) == (42, 0, 0)
    assert found.lost == {}


def test_a_gpu_that_leaves_kfds_list_meanwhile_is_lost(tmp_path):
    root = amd.write(tmp_path, amd.MI300X)

    def wait(seconds):
        (root / gpu.KFD / "topology/nodes/5/gpu_id").unlink()
        return True

    found = amdgpu_health.watch(root, ["GPU-a1b2000000000013", "GPU-a1b2000000000014"], wait)
    assert found.lost == {"GPU-a1b2000000000013": "amdgpu: it left KFD's list"}
    assert list(found.gpus) == ["GPU-a1b2000000000014"]


@pytest.fixture
def moving(tmp_path, monkeypatch):
    """Return the condition of a GPU whose file gpu_metrics has the first content, and the second a moment later."""

    def moving(before, after):
        root = amd.write(tmp_path / "root", amd.change(amd.MI300X, 3, metrics=before))
        file = root / "sys/bus/pci/devices/0000:69:00.0/gpu_metrics"
        monkeypatch.setattr(amdgpu_health.time, "sleep", lambda _: file.write_bytes(after))
        found = amdgpu_health.examine(amdgpu.collect(root), root).devices[3].health.clocks.event_reasons
        monkeypatch.undo()
        return found

    return moving


@pytest.mark.parametrize("revision", [6, 7, 8, 9])
@pytest.mark.parametrize(
    ("later", "reasons"),
    [
        ({}, 0),
        ({"power": 100}, 0),  # it works at its power limit
        ({"heat": 9}, 0),
        ({"heat": 60}, gpu_facts.SOFTWARE_THERMAL),
        ({"prochot": 100}, gpu_facts.HARDWARE_THERMAL),
        ({"prochot": 100, "heat": 100}, gpu_facts.HARDWARE_THERMAL | gpu_facts.SOFTWARE_THERMAL),
    ],
)
def test_what_the_firmware_counts_between_two_readings_slows_a_gpu_down_now(moving, revision, later, reasons):
    before = {"prochot": 5000, "heat": 7000, "power": 9000}
    after = {name: number + later.get(name, 0) for name, number in before.items()}
    first, then = amd.metrics(revision, 10**6, **before), amd.metrics(revision, 10**6 + 100, **after)
    assert moving(first, then) == reasons


def test_a_table_of_revision_9_has_the_size_of_a_recorded_one():
    assert len(amd.metrics(9, 54536484)) == 1150


HOT_IN_EACH_TICK = [
    struct.pack("<HBB28x6I", 1664, 1, 6, n, 0, n, n, 0, n).ljust(1664, b"\0") for n in (10**6, 10**6 + 100)
]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (amd.metrics(6, 500), amd.metrics(6, 500), "the counters of gpu_metrics did not move, or began again"),
        (amd.metrics(6, 500), amd.metrics(6, 20), "the counters of gpu_metrics did not move, or began again"),
        (b"\x80\x06\x01\x0a".ljust(1664, b"\0"),) * 2 + ("gpu_metrics of revision 1.10 with 1664 bytes is not known",),
        (amd.metrics(6, 500)[:900],) * 2 + ("gpu_metrics of revision 1.6 with 900 bytes is not known",),
        (amd.metrics(9, 500)[:60],) * 2 + ("gpu_metrics of revision 1.9 with 60 bytes is not known",),
        (amd.metrics(9, 500)[:8] + b"\xff" * 40,) * 2 + ("gpu_metrics of revision 1.9 with 48 bytes is not known",),
        (b"\x01",) * 2 + ("gpu_metrics of revision 0.0 with 1 bytes is not known",),
        (*HOT_IN_EACH_TICK, "gpu_metrics counts the GPU as too hot all the time"),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_counters_that_cannot_be_read_or_believed_are_unknown(moving, before, after, reason):
    assert moving(before, after) == Missing(reason=f"amdgpu: {reason}")


@pytest.mark.parametrize("metrics", [b"", amd.metrics(3, 0), amd.metrics(6, 0xFFFFFFFF)])
def test_a_card_without_such_counters_has_none(moving, metrics):
    assert moving(metrics, metrics) == gpu_facts.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("after", "seconds"),
    [({"prochot": 500}, (0.5, 0)), ({"heat": 250}, (0, 0.25)), ({}, (0, 0))],
)
def test_the_watch_keeps_for_how_long_the_firmware_slowed_a_gpu_down(tmp_path, after, seconds):
    root = amd.write(tmp_path, amd.change(amd.MI300X, 3, metrics=amd.metrics(7, 10**6)))
    file = root / "sys/bus/pci/devices/0000:69:00.0/gpu_metrics"

    def wait(_):
        file.write_bytes(amd.metrics(7, 10**6 + 1000, **after))
        return True

    load = amdgpu_health.watch(root, ["GPU-a1b2000000000013"], wait).gpus["GPU-a1b2000000000013"]
    share = tuple(each / load.seconds for each in (load.hardware_thermal_seconds, load.software_thermal_seconds))
    assert share == pytest.approx(seconds)
