"""What GPUs show while the collectives run, from NVML's counters to the finding.

The child that watches, nvidia-ml-py and the facts are the real ones; tests/nvml/fake_nvml.c answers, its counters grow.
"""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
import pytest
from made.nvml_jobs import PROFILES

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, GpuHealth, GpuLoad, Gpus, LinkErrors
from distcheck.facts.merge import with_loads
from distcheck.probe import gpu, gpu_load
from distcheck.rules import FAMILIES
from distcheck.rules.gpu.clocks import POWER_BRAKE, held_by_brake
from distcheck.rules.gpu.readings import Reading

LOOKS = ("environment", "meeting", "gpu")
AT_WORK = "reasons 0x0\nclock 1980\npcie.gen 5\n"
AT_POWER_LIMIT = "reasons 0x4\nclock 1470\ntemperature 62\n"
"""A real H200 that draws its 700 W during matrix products."""
H200 = PROFILES["h200"] + AT_WORK
H200_VM = PROFILES["h200_vm"] + AT_WORK
LOOKS_AT_WORK = 6
replace = msgspec.structs.replace


@pytest.fixture
def watched(fake_nvml, monkeypatch):
    """Return a node's NVML facts before a load, and its watch during it, from up to two texts."""

    def watched(before, during=None, looks=LOOKS_AT_WORK):
        for name, value in fake_nvml.environ(before).items():
            monkeypatch.setenv(name, value)
        found = asyncio.run(gpu.gpus(60.0))
        assert isinstance(found, Gpus), found
        fake_nvml.facts.write_text(before if during is None else during)

        async def under_load(seconds):
            async with gpu_load.watching(found, 60.0) as watch:
                await asyncio.sleep(seconds)
            return watch.answer

        for longer in (1, 4, 16):  # on a busy machine the child samples later
            seen = asyncio.run(under_load(longer * (looks * 0.25 + 0.5)))
            if isinstance(seen, Missing) or AT_WORK not in before:
                break
            if max((load.busy for load in seen.gpus.values()), default=looks) >= looks - 2:
                break
        return found, seen

    return watched


@pytest.fixture
def says(judge, job_of, change):
    """Return the findings about nodes whose GPUs were watched; rank i takes GPU i."""
    families = [name for name, family in FAMILIES.items() if family.looks == ("gpu",)]

    def says(*nodes):
        job = job_of(len(nodes), 8, looks=LOOKS, gpus=8)
        for n, (found, loads) in enumerate(nodes):
            job = change.node(job, n, gpus=with_loads(replace(job.nodes[n], gpus=found), loads).gpus)
            devices = tuple(replace(g, uuid=f"{g.uuid}{n}") for g in job.nodes[n].gpus.devices)
            job = change.node(job, n, gpus=replace(job.nodes[n].gpus, devices=devices))
            for i, rank in enumerate(job.ranks):
                if job.node_of(rank) is job.nodes[n]:
                    job = change.rank(job, i, gpu=devices[rank.placement.local_rank].uuid)
        result = judge(job, *families)
        return result.findings

    return says


def test_healthy_gpus_under_load_are_silent(watched, says):
    healthy = watched(H200)
    loads = healthy[1].gpus
    assert len(loads) == 8
    assert min(load.busy for load in loads.values()) >= 4
    assert {(load.pcie_generation, load.sm_MHz) for load in loads.values()} == {(5, 1980)}
    assert says(healthy, healthy) == ()


@pytest.mark.parametrize("profile", PROFILES)
def test_idle_gpus_of_any_model_are_silent(watched, says, profile):
    found, loads = watched(PROFILES[profile] + "reasons 0x1\npcie.gen 1\nclock 210\n", looks=1)
    assert {load.busy for load in loads.gpus.values()} == {0}
    if len(found.devices) == 8:
        assert says((found, loads)) == ()


def test_gpus_at_their_power_limit_are_silent(watched, says):
    found, loads = watched(H200_VM, H200_VM + AT_POWER_LIMIT)
    (load,) = loads.gpus.values()
    assert (load.sm_MHz, load.temperature_celsius, set(load.event_reasons)) == (1470, 62, {0x4})
    assert found.devices[0].health.power_limit_watts == 700
    all_at_it = watched(H200, H200 + AT_POWER_LIMIT)
    assert says(all_at_it, all_at_it) == ()
    one_at_it = "".join(f"3.{line}\n" for line in AT_POWER_LIMIT.splitlines())
    assert says(watched(H200, H200 + one_at_it)) == (), "beside GPUs with lighter work"


def test_a_gpu_that_is_at_its_power_limit_now_and_then_is_compared(watched, says):
    found, loads = watched(H200, H200 + "3.clock 1200\n")
    at_times = {
        uuid: replace(load, event_reasons={0x4: load.busy // 2} if load.sm_MHz == 1200 else {})
        for uuid, load in loads.gpus.items()
    }
    (finding,) = says((found, replace(loads, gpus=at_times)))
    assert (finding.rule, finding.ranks) == ("gpu-clocks-locked", (3,))


FAULTS = (
    ("field.270 type 3 0 grows 500000000", "gpu-thermal-throttle", "hardware thermal slowdown for "),
    ("field.269 type 3 0 grows 900000000", "gpu-thermal-throttle", "software thermal slowdown for "),
    ("field.271 type 3 0 grows 500000000", "gpu-power-cap", "slowed by the system's power brake for"),
    ("pcie.replays 5 grows 40", "gpu-pcie-replay", "PCIe resent"),
    ("field.161.7 0 grows 3", "gpu-nvlink-errors", "replay errors on NVLink 7 in "),
    ("field.163.2 0 grows 400", "gpu-nvlink-errors", "crc errors on NVLink 2 in "),
    ("pcie.gen 1", "gpu-pcie-downgraded", "PCIe generation 1 under load; 5 is possible"),
    ("clock 1200", "gpu-clocks-locked", "at most 1200 MHz under load; others of its model reach 1980 MHz"),
)


def test_every_fault_under_load_names_its_gpu_and_rank(watched, says):
    faulty = watched(H200, H200 + "".join(f"{n}.{line}\n" for n, (line, _, _) in enumerate(FAULTS)))
    findings = says(watched(H200, looks=4), faulty)
    assert {(f.severity, f.nodes) for f in findings} == {("warning", ("node2",))}
    for n, (_, rule, words) in enumerate(FAULTS):
        (finding,) = [f for f in findings if f.rule == rule and 8 + n in f.ranks]
        assert words in finding.evidence[f"GPU {n}"], finding
    assert sorted(rank for f in findings for rank in f.ranks) == list(range(8, 16)), "each GPU for its fault alone"


def test_a_memory_failure_under_load_excludes_the_node(watched, says):
    (finding,) = says(watched(H200, H200 + "3.ecc.1.0 0 grows 1\n"))
    assert (finding.rule, finding.ranks, finding.confirmed) == ("gpu-ecc-uncorrected", (3,), True)
    assert "of them while the collectives ran" in finding.message


def test_a_gpu_lost_under_load_is_reported(watched, says):
    (finding,) = says(watched(H200, H200 + "3.lost yes\n"))
    assert (finding.rule, finding.severity, finding.nodes) == ("gpu-fell-off-bus", "error", ("node1",))


def test_high_counters_that_do_not_grow_under_load_are_silent(watched, says):
    assert says(watched(H200 + "3.field.161.7 30\n3.pcie.replays 200\n3.field.270 type 3 90000000000\n")) == ()


def test_counters_that_could_not_be_read_before_are_silent(watched):
    found, _ = watched(H200, looks=1)
    health = found.devices[0].health
    full = replace(health, nvlinks=replace(health.nvlinks, errors=(LinkErrors("replay", (9,) * 18),)))
    for unread in (Missing(reason="NVML error 999: unknown"), replace(health.nvlinks, errors=Missing(reason="no"))):
        assert gpu_load.load(replace(health, nvlinks=unread), full, (), 1.0).nvlink_errors == ()
    assert gpu_load.load(health, full, (), 1.0).nvlink_errors == (LinkErrors("replay", (9,) * 18),)


def test_without_slowdown_timers_the_samples_decide(watched, says):
    old = H200 + "".join(f"field.{n} !3\n" for n in (269, 270, 271))
    hot = watched(old, old + "3.reasons 0x48\n")
    (finding,) = says(hot)
    assert (finding.rule, finding.ranks) == ("gpu-thermal-throttle", (3,))
    assert "hardware thermal slowdown for 100% of the collectives' run" in finding.message
    assert says(watched(old)) == ()


def test_reasons_without_busy_readings_are_silent():
    load = GpuLoad(seconds=5.0, busy=0, event_reasons={POWER_BRAKE: 5})  # in a file that something else has written
    gpu = Gpu(0, "GPU-1", "0000:1b:00.0", "H200", 1, 0, health=GpuHealth(), load=load)
    assert held_by_brake(Reading(None, gpu, (), used=True, health=gpu.health)) == ""


def test_a_driver_that_hangs_under_load_stops_only_the_watch(watched, says, monkeypatch):
    monkeypatch.setattr(gpu_load, "_ANSWER_SECONDS", 1.0)
    start = time.monotonic()
    found, loads = watched(H200, H200 + "3.processes hang\n")
    assert isinstance(loads, Missing)
    assert time.monotonic() - start < 30
    (finding,) = says((found, loads))
    assert (finding.rule, finding.severity, finding.nodes) == ("gpu-nvml-init-failed", "warning", ("node1",))
    assert "while the collectives ran: NVML did not answer within 1 s" in finding.message


def test_a_watch_that_could_not_start_is_listed_as_not_checked(watched, judge, job_of, change):
    found, _ = watched(H200, looks=0)
    job = job_of(1, 8, looks=LOOKS, gpus=8)
    why = Missing(reason="could not start the process that queries NVML: out of memory")
    job = change.node(job, 0, gpus=with_loads(replace(job.nodes[0], gpus=found), why).gpus)
    result = judge(job, "gpu.mapping")
    assert "out of memory" in " ".join(n.reason for n in result.not_checked)
    assert not [n for n in result.not_checked if n.required]


def test_the_watcher_ends_with_its_parent(fake_nvml, monkeypatch):
    for name, value in fake_nvml.environ(H200).items():
        monkeypatch.setenv(name, value)

    async def cut_short():
        found = await gpu.gpus(60.0)
        async with gpu_load.watching(found, 60.0):
            await asyncio.sleep(0.5)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(cut_short())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_process_that_did_not_read_the_gpus_watches_none(watched, says):
    async def answer(gpus):
        async with gpu_load.watching(gpus, 60.0) as watch:
            pass
        return watch.answer

    found, _ = watched(H200)
    unread = replace(found, devices=tuple(replace(device, health=None) for device in found.devices))
    assert [asyncio.run(answer(gpus)) for gpus in (None, Missing(reason="no"), unread)] == [None] * 3
