"""The RDMA adapters of made-up trees of /sys, as their drivers present them."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time

import pytest
from made import hcas

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Counters, Gid, Infiniband, grown
from distcheck.probe import infiniband, process


@pytest.fixture
def collect(tmp_path):
    """Return the facts of a machine with these adapters."""
    return lambda *adapters: infiniband.collect(hcas.write(tmp_path, adapters), {})


def port(found, place=0):
    return found.hcas[place].ports[0]


def test_an_infiniband_port_has_its_state_rate_and_subnet_manager(collect):
    found = collect(hcas.infiniband())
    hca, own = found.hcas[0], port(found)
    assert (hca.name, hca.driver, hca.board, hca.device_file, hca.file_name) == (
        "mlx5_0", "mlx5_core", "MT_0000000838", "usable", "uverbs0",
    )  # fmt: skip
    assert (own.number, own.link_layer, own.state, own.physical_state) == (1, "InfiniBand", "ACTIVE", "LinkUp")
    assert (own.rate_Gbps, own.lanes, own.speed) == (400.0, 4, "NDR")
    assert (own.partition_keys, own.pkey_slots) == ({0: 0xFFFF}, 3)


def test_a_roce_port_has_its_gid_table_without_empty_entries(collect):
    own = port(collect(hcas.roce(address="10.1.0.7")))
    assert own.gid_slots == 8
    assert own.gids[3] == Gid(hcas.ipv4("10.1.0.7"), hcas.V2, "ens0np0")
    assert [gid.kind for gid in own.gids.values()] == [hcas.V1, hcas.V2] * 2


def test_efa_rxe_and_hfi1_are_read_as_well(collect):
    found = collect(hcas.efa(), hcas.hfi1(), hcas.rxe())
    assert [(hca.name, hca.driver, port(found, n).link_layer) for n, hca in enumerate(found.hcas)] == [
        ("hfi1_0", "hfi1", "InfiniBand"), ("rdmap16s27", "efa", "Unspecified"), ("rxe0", "", "Ethernet"),
    ]  # fmt: skip
    assert found.hcas[2].device_file == "usable", "rxe has no PCI function, so its file is found in infiniband_verbs"
    assert found.net_plugin == "", "EFA needs a plugin, and none is here"
    assert port(found, 2).rate_Gbps == 2.5


def test_a_plugin_is_searched_only_for_adapters_that_need_one(collect):
    assert collect(hcas.infiniband()).net_plugin is None


def test_a_device_file_that_is_absent_or_refused_is_not_usable(collect, tmp_path, monkeypatch):
    collect(hcas.infiniband(), hcas.infiniband("mlx5_1", file="absent"))
    denied = PermissionError(1, "Operation not permitted")
    monkeypatch.setattr(infiniband.os, "open", _refusing(infiniband.os.open, "uverbs0", denied))
    found = infiniband.collect(tmp_path, {})
    assert [(hca.device_file, hca.denied) for hca in found.hcas] == [
        ("denied", "Operation not permitted"),
        ("absent", ""),
    ]


def _refusing(real, name, error):
    def opened(path, *rest):
        if str(path).endswith(name):
            raise error
        return real(path, *rest)

    return opened


def test_counters_are_read_and_their_growth_is_kept(collect, tmp_path):
    before = collect(hcas.roce(counters={"packet_seq_err": 5, "symbol_error": 9}))
    assert port(before).counters["packet_seq_err"] == 5
    hcas.write(tmp_path, [hcas.roce(counters={"packet_seq_err": 30, "symbol_error": 2})])
    after = grown(before, infiniband.collect_counters(tmp_path))
    assert port(after).growth == {"packet_seq_err": 25}, "a counter that shrank was reset"
    assert grown(before, Missing(reason="hangs")).unwatched == "hangs"
    assert port(grown(before, Counters({}))).growth == {}


def test_peer_memory_the_open_driver_and_iommu_groups_are_read(tmp_path):
    for path, text in {
        "sys/module/nvidia_peermem/version": "550.54.15",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15",
        "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "sys/bus/pci/devices/0000:1b:00.0/iommu_group").symlink_to("../../../kernel/iommu_groups/17")
    found = infiniband.collect(tmp_path, {})
    assert (found.peer_memory, found.open_driver) == (("nvidia_peermem",), True)
    assert found.iommu_groups == {"0000:1b:00.0": "17"}
    assert infiniband.collect(tmp_path / "nothing", {}).open_driver is None


@pytest.mark.parametrize("gone", ["state", "rate", "gids", "pkeys", "counters", "hw_counters", "ports", "device"])
def test_any_missing_file_is_tolerated(collect, tmp_path, gone):
    collect(hcas.infiniband())
    for path in (tmp_path / "sys").rglob(gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (hca,) = infiniband.collect(tmp_path, {}).hcas
    assert hca.name == "mlx5_0"
    assert bool(hca.ports) == (gone != "ports")


def test_sixteen_adapters_are_read_within_milliseconds(collect, tmp_path):
    collect(*(hcas.roce(f"mlx5_{n}", gid_slots=256) for n in range(16)))
    start = time.process_time()
    assert len(infiniband.collect(tmp_path, {}).hcas) == 16
    assert time.process_time() - start < 1.0, "usually 0.1 s: 4096 GIDs and 272 counters"


def test_each_report_of_the_child_has_one_adapter_more(tmp_path):
    reports = list(infiniband.collecting(hcas.write(tmp_path, [hcas.infiniband(), hcas.infiniband("mlx5_1")]), {}))
    assert [len(report.hcas) for report in reports] == [0, 1, 2]
    assert [bool(report.unread) for report in reports] == [False, True, False]


@pytest.mark.process
def test_an_adapter_that_hangs_costs_only_what_was_not_read(tmp_path, monkeypatch, other_python):
    folder = hcas.write(tmp_path / "root", [hcas.infiniband()])
    monkeypatch.setattr(infiniband, "_ROOT", folder)
    report = '{"hcas":[{"name":"mlx5_0","ports":[]}],"fact":"infiniband","unread":"the others"}'
    other_python(f"echo '{report}'\nexec sleep 60")
    found = asyncio.run(infiniband.infiniband(1.0))
    assert isinstance(found, Infiniband)
    assert [hca.name for hca in found.hcas] == ["mlx5_0"]
    assert "did not answer within 1 s: an adapter or its driver hangs" in found.unread


def test_a_machine_without_adapters_starts_no_child(tmp_path, monkeypatch):
    monkeypatch.setattr(infiniband, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert asyncio.run(infiniband.infiniband(1.0)) == Infiniband()


@pytest.mark.process
def test_a_child_reads_this_machine():
    assert asyncio.run(infiniband.counters(60.0)) == infiniband.collect_counters()


def test_locked_memory_has_no_limit_for_the_initial_root_only(tmp_path, monkeypatch):
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    monkeypatch.setattr(process.resource, "getrlimit", lambda _what: (8 << 20, 8 << 20))
    limits = []
    for capabilities, uids in (("1ffffffffff", "0 0 4294967295"), ("1ffffffffff", "0 1000 1"), ("0", "0 0 4294967295")):
        (proc / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities.zfill(16)}\n")
        (proc / "uid_map").write_text(f"{uids}\n")
        limits.append(process.locked_memory(tmp_path))
    assert limits == [-1, 8 << 20, 8 << 20]
