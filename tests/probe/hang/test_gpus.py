"""The GPUs of ranks by the real nvidia-ml-py in a real child, on a fake library with the test's values."""

from __future__ import annotations

import os

import pytest
from made.nvml_jobs import PROFILES
from made.running import busy
from msgspec.structs import replace
from real.waiting import until

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Xid
from distcheck.facts.hang import GpuUse
from distcheck.probe.hang import gpus
from distcheck.probe.hang.gpus import WatchedGpu

FULL = f"{PROFILES['dgx_h100']}utilization 100\npower.usage 91000\n"
NONE = Missing(reason="not read")


@pytest.fixture
def watch(fake_nvml, monkeypatch):
    """Return what is seen of a node whose NVML answers with the first text, and at the second sample with the other."""

    def watched(before, after=None):
        for name, value in fake_nvml.environ(before).items():
            monkeypatch.setenv(name, value)
        watching = gpus.watch(60)
        if after is not None:
            until(lambda: os.fstat(watching._output).st_size)
            fake_nvml.write(after)
        return gpus.seen(watching)

    return watched


def test_each_gpu_is_read_twice(watch):
    found = watch(FULL, FULL.replace("utilization 100", "utilization 97") + "3.lost yes\n2.processes 77:1024\n")
    assert len(found) == 8
    assert replace(found[0].use, memory_used_bytes=()) == GpuUse(0, (100, 97), (), (91.0, 91.0), 700.0)
    assert found[2].pids == (77,)
    assert (found[3].use.utilization_percent, found[3].use.lost[:13]) == ((100,), "NVML error 15")


def test_an_nvml_that_hangs_or_is_not_there_is_a_reason_in_time(watch):
    assert watch(FULL, f"{FULL}5.power.usage hang\n").reason.startswith("NVML did not answer within 3 s")
    assert watch("init !9\n", "init !9\n").reason.startswith("NVML error 9")


def device(number: int, *pids: int, lost: str = "") -> WatchedGpu:
    """Return GPU 3 as it is; a lost one has no UUID."""
    gpu = Gpu(number, NONE if lost else f"GPU-{number}", f"0000:0{number}:00.0", "H100", NONE, NONE, lost=lost)
    return WatchedGpu(gpu, GpuUse(number, lost=lost), pids, (Xid(79, "", 50.0, ""), Xid(31, "", 500.0, "")))


NODE = tuple(device(n, *([4700 + n] if n != 2 else []), lost="lost" if n == 2 else "") for n in range(4))
UNLISTED = tuple(replace(each, pids=()) for each in NODE)


@pytest.mark.parametrize(
    ("found", "rank", "value", "indices"),
    [
        (NODE, 1, None, [1]),
        (NODE, 2, None, [2]),  # the lost one lists no process, and has no UUID any more
        (NODE, 3, None, [3]),
        (UNLISTED, 3, None, [3]),
        (UNLISTED, 1, "3,1", [1]),
        (UNLISTED, 0, "GPU-3,GPU-1", [3]),
        (UNLISTED, 0, "2,3", [2]),
        (NODE, 1, "3,0", [1]),  # what NVML lists goes before
        ((device(0, 4700, 4701), device(1, 4701)), 1, None, [1]),  # it opened the first GPU, too
        (UNLISTED, 1, "7", []),
    ],
)
def test_the_gpu_of_a_rank_is_where_nvml_lists_it_else_where_its_variables_lead(
    found, rank, value, indices, monkeypatch
):
    monkeypatch.setattr(gpus, "link_name", lambda _: "pid:[4026531836]")
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [use.index for use in gpus.uses(found, busy(rank), environ)] == indices


def test_numbers_of_processes_do_not_count_in_a_pid_namespace(monkeypatch):
    monkeypatch.setattr(gpus, "link_name", lambda _: "pid:[4026532500]")
    assert [use.index for use in gpus.uses((device(0), device(1, 4700)), busy(0), {})] == [0]


def test_errors_from_before_the_rank_started_are_left_out():
    (use,) = gpus.uses(NODE, busy(2), {})
    assert [xid.number for xid in use.xids] == [79]
