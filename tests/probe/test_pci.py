"""Where GPUs and network adapters are on the PCI bus, from made-up trees of /sys."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from made import machines

from distcheck.facts.base import Missing
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.probe import pci
from distcheck.selection import pci as tree


@pytest.fixture
def collect(tmp_path):
    """Return the facts collected on a machine."""

    def collect(machine):
        found = pci.collect(machines.write(tmp_path / "root", machine))
        assert isinstance(found, Pci), found
        return found

    return collect


def test_the_pci_places_of_a_dgx_h100_are_read_from_the_root_complex_down(collect):
    found = collect(machines.DGX_H100)
    assert list(found.gpus) == [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
    path = ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "0000:1b:00.0")
    assert found.gpus["0000:1b:00.0"] == PciPlace(path, 0, cpus="0-55,112-167")
    assert [place.numa_node for place in found.gpus.values()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not found.virtual


def test_the_adapters_are_infiniband_devices_and_other_ethernet_cards(collect):
    found = collect(machines.DGX_H100)
    assert [nic.name for nic in found.nics] == [
        *(f"mlx5_{n}" for n in range(12)), "eno3", "enxbe3af2b6059f",
    ]  # fmt: skip
    by_name = {nic.name: nic for nic in found.nics}
    path = ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    assert by_name["mlx5_0"] == Nic("mlx5_0", PciPlace(path, 0), "ib", "InfiniBand", ports=(1,), rate_Gbps=400.0)
    down = by_name["mlx5_2"]
    assert (down.active, down.ports, down.link_layer, down.rate_Gbps) == (False, (), "Ethernet", None)
    card = by_name["eno3"]
    assert (card.kind, card.active, card.rate_Gbps, card.place.path[-1]) == ("ethernet", True, 10.0, "0000:0b:00.0")


def test_usb_devices_are_not_on_the_pci_bus(collect):
    nic = next(nic for nic in collect(machines.DGX_H100).nics if nic.name.startswith("enx"))
    assert nic.place == PciPlace((), None)


def test_a_driver_may_add_a_level_below_the_pci_function(collect):
    found = collect(machines.VIRTIO)
    (nic,) = found.nics
    assert nic.place == PciPlace(("pci0000:00", "0000:00:03.0", "0000:02:00.0"), None)
    assert (nic.active, nic.rate_Gbps) == (True, None)
    assert found.virtual


def test_an_unknown_numa_node_is_none_and_has_no_cpus(collect):
    assert collect(machines.VIRTIO).gpus["0000:01:00.0"] == PciPlace(
        ("pci0000:00", "0000:00:02.0", "0000:01:00.0"), None, cpus=""
    )


def test_azures_devices_have_their_own_root_complexes(collect):
    found = collect(machines.AZURE_H100)
    assert found.gpus["0001:00:00.0"] == PciPlace(("pci0001:00", "0001:00:00.0"), 0, cpus="0-47")
    assert found.virtual
    assert len(found.gpus) == len(found.nics) == 8


def test_virtual_functions_are_separate_adapters(collect):
    card = next(card for card in machines.DGX_H100.cards if card.ib == "mlx5_0")
    virtual = card._replace(path=(*card.path[:-1], "0000:18:00.1"), ib="mlx5_12", net="ibp24s0v0")
    found = collect(machines.DGX_H100._replace(cards=(*machines.DGX_H100.cards, virtual)))
    assert [nic.name for nic in found.nics if nic.place.path[:4] == card.path[:4]] == ["mlx5_0", "mlx5_12"]


def test_an_adapter_without_its_device_file_is_unusable(collect):
    found = collect(machines.change(machines.DGX_H100, "mlx5_3", file=False))
    assert [nic.name for nic in found.nics if not nic.usable] == ["mlx5_3"]


def test_software_devices_have_no_pci_place(collect, tmp_path):
    collect(machines.VIRTIO)
    folder = tmp_path / "root/sys/class/infiniband/rxe0/ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    found = pci.collect(tmp_path / "root")
    assert isinstance(found, Pci)
    assert [(nic.name, nic.place.path) for nic in found.nics if nic.kind == "ib"] == [("rxe0", ())]


def test_a_machine_without_pci_has_no_devices(tmp_path):
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    assert pci.collect(tmp_path) == Pci({}, ())


def test_a_container_without_sysfs_has_a_reason(tmp_path):
    assert pci.collect(tmp_path) == Missing(reason=f"{tmp_path}/sys/bus/pci/devices: No such file or directory")


@pytest.mark.parametrize("gone", ["numa_node", "local_cpulist", "class", "vendor", "ports", "device", "speed"])
def test_any_missing_file_is_tolerated(collect, tmp_path, gone):
    collect(machines.DGX_H100)
    for path in sorted((tmp_path / "root/sys/devices").rglob(gone)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    found = pci.collect(tmp_path / "root")
    assert isinstance(found, Pci)
    assert bool(found.gpus) == (gone not in {"class", "vendor"})


def test_circular_and_dangling_links_are_tolerated(tmp_path):
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:01:00.0").symlink_to(bus / "0000:01:00.0")
    (bus / "0000:02:00.0").symlink_to(tmp_path / "nowhere")
    assert pci.collect(tmp_path) == Pci({}, ())


def test_firmware_reveals_a_virtual_machine_without_cpu_flags(tmp_path):
    machines.write(tmp_path, machines.PCIE_L40S)
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    for vendor, product, virtual in (("QEMU", "KVM Virtual Machine", True), ("NVIDIA", "Grace CPU P5042", False)):
        (folder / "sys_vendor").write_text(f"{vendor}\n")
        (folder / "product_name").write_text(f"{product}\n")
        found = pci.collect(tmp_path)
        assert isinstance(found, Pci)
        assert found.virtual is virtual


@pytest.mark.process
def test_a_child_reads_this_machine():
    found = asyncio.run(pci.places(60.0))
    assert found == pci.collect()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machines.DGX_H100, [(f"mlx5_{n}", "PIX") for n in (0, 3, 4, 5, 6, 9, 10, 11)]),
        (machines.DGX_A100, [(f"mlx5_{n}", "PXB") for n in (0, 1, 2, 3, 6, 7, 8, 9)]),
        (machines.PCIE_L40S, [(f"mlx5_{n}", "NODE") for n in (0, 0, 0, 0, 1, 1, 1, 1)]),
        (machines.AZURE_H100, []),
        (machines.VIRTIO, []),
    ],
    ids=["dgx_h100", "dgx_a100", "pcie_l40s", "azure_h100", "virtio"],
)
def test_each_gpu_has_the_adapter_next_to_it(collect, machine, expected):
    near = tree.by_gpu(collect(machine))
    assert [(nic.name, found.distance) for found in near.values() for nic in found.nics] == expected
