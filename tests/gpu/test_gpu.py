"""All of distcheck on real GPUs, compared with nvidia-smi and torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = os.environ.get("DISTCHECK_RECORD_GPU")
"""A folder that receives the facts of these runs, to become test data."""


def saved(tmp_path, name):
    return Path(RECORD or tmp_path) / f"{name}.json"


def unexpected(report):
    """Return errors and missing required facts; a machine in use may give warnings."""
    return [f for f in report["findings"] if f["severity"] == "error"]


def test_every_rank_has_the_gpu_that_nvidia_smi_names(distcheck, cards, tmp_path):
    path = saved(tmp_path, "gpu")
    ended = distcheck("gpu", "--nproc", "auto", "--format", "json", "--save", str(path))
    assert (ended.code, unexpected(ended.report)) == (0, []), ended
    rows = [(row["gpu"]["index"], row["gpu"]["uuid"], row["gpu"]["pci"]) for row in ended.report["ranks"]]
    assert rows == [(card.index, card.uuid, card.pci) for card in cards]
    job = json.loads(path.read_text())
    shown = {device["uuid"] for device in job["ranks"][0]["cuda"]["devices"]}
    assert shown == {card.uuid for card in cards}, "CUDA and NVML tell of the same GPUs"


def test_a_value_of_the_variable_is_read_as_cuda_reads_it(distcheck, cards):
    last = cards[-1]
    for value in (str(last.index), last.uuid, last.uuid[:12]):
        ended = distcheck("gpu", "--nproc", "1", "--format", "json", env={"CUDA_VISIBLE_DEVICES": value})
        assert (ended.code, unexpected(ended.report)) == (0, []), ended
        assert ended.report["ranks"][0]["gpu"]["uuid"] == last.uuid
    nothing = distcheck("gpu", "--nproc", "1", "--format", "json", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert [f["rule"] for f in unexpected(nothing.report)] == ["gpu-cvd-minus-one"]


def test_bandwidth_runs_nccl_on_the_gpu_that_was_predicted(distcheck, cards, tmp_path):
    path = saved(tmp_path, "bandwidth")
    words = ("--nproc", "auto", "--sizes", "1M:256M:x16", "--format", "json", "--save", str(path))
    ended = distcheck("bandwidth", *words, "--timeout", "180")
    assert (ended.code, unexpected(ended.report)) == (0, []), ended
    assert ended.report["world"]["backend"] == "nccl"
    assert {row["wrong"] for row in ended.report["bandwidth"]} == {0}
    job = json.loads(path.read_text())
    for rank, card in zip(job["ranks"], cards, strict=True):
        assert (rank["run"]["device"], rank["run"]["gpu"]) == (card.name, card.uuid)
    loads = [device["load"] for device in job["nodes"][0]["gpus"]["devices"]]
    assert all(load["busy"] > 0 and load["sm_MHz"] > 0 for load in loads), "they were seen at work"


def test_the_gate_passes_and_becomes_the_command(distcheck):
    ended = distcheck("gate", "--nproc", "1", "--timeout", "120", "--", "echo", "trained")
    assert (ended.code, ended.out) == (0, "trained\n"), ended


def may_share():
    """Return whether the NCCL that torch loads knows NCCL_MULTI_RANK_GPU_ENABLE."""
    code = "from distcheck.collectives.software import nccl_version; print(nccl_version())"
    version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, version.split("."))) >= (2, 30)


def two_on_one(by_hand, command, *words, ranks=2, **env):
    one = {"CUDA_VISIBLE_DEVICES": "0", **env}
    running = by_hand(command, list(range(ranks)), ranks, "--local-rank", "0", "--format", "json", *words, env=one)
    return [run.wait(240) for run in running]


def test_two_ranks_on_one_gpu_are_named_before_nccl_starts(by_hand):
    ended = two_on_one(by_hand, "bandwidth")
    assert {e.code for e in ended} == {30}, ended
    (report,) = [e.report for e in ended if e.out]
    assert [(f["rule"], f["ranks"]) for f in unexpected(report)] == [("gpu-duplicate", [0, 1])]
    assert report["bandwidth"] == []


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_may_share_a_gpu_get_exact_results(by_hand, ranks):
    # The figures mean nothing because the ranks take turns on the GPU.
    allowed = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": str(max(1, 8 // ranks))}
    words = ("--sizes", "1M", "--iters", "3", "--timeout", "200")
    ended = two_on_one(by_hand, "bandwidth", *words, ranks=ranks, **allowed)
    if not may_share():
        assert {e.code for e in ended} == {30}, ended
        (report,) = [e.report for e in ended if e.out]
        assert "gpu-duplicate" in [f["rule"] for f in unexpected(report)]
        return
    assert {e.code for e in ended} == {0}, ended
    (report,) = [e.report for e in ended if e.out]
    assert [(row["op"], row["wrong"]) for row in report["bandwidth"]] == [("all_reduce", 0), ("broadcast", 0)]


def test_ranks_with_their_own_nccl_hostid_get_exact_results(by_hand, port):
    # NCCL 2.5.6 and later; over sockets of the loopback, so the figures mean nothing.
    words = ("bandwidth", "--local-rank", "0", "--format", "json", "--sizes", "1M", "--iters", "3", "--timeout", "200")
    running = [
        run
        for rank in range(2)
        for run in by_hand(
            words[0], [rank], 2, *words[1:], master_port=port, env={
                "CUDA_VISIBLE_DEVICES": "0", "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"
            },
        )
    ]  # fmt: skip
    ended = [run.wait(240) for run in running]
    assert {e.code for e in ended} == {0}, ended
    (report,) = [e.report for e in ended if e.out]
    assert [(row["op"], row["wrong"]) for row in report["bandwidth"]] == [("all_reduce", 0), ("broadcast", 0)]
