"""Ranks that are pinned to CPUs, next to their GPUs and far from them."""

from __future__ import annotations

import os
import sys

import pytest
from made.nvml_jobs import PROFILES

H100 = PROFILES["dgx_h100"]


@pytest.fixture
def pinned(distcheck, fake_nvml):
    """Run ``distcheck gpu --nproc 8`` on one CPU, next to which are the first four GPUs of a DGX H100."""

    def pinned(cpu, text):
        env = fake_nvml.variables(text)
        program = ["taskset", "--cpu-list", str(cpu), sys.executable, "-m", "distcheck"]
        return distcheck("gpu", "--nproc", "8", "--format", "json", env=env, program=program)

    return pinned


def test_ranks_on_one_cpu_far_from_their_gpus_are_named(pinned):
    cpu = min(os.sched_getaffinity(0))
    assert cpu < 56, "the profile's first four GPUs are next to CPUs 0-55"
    ended = pinned(cpu, H100)
    found = [f for f in ended.report["findings"] if f["rule"] == "gpu-far-from-cpu"]
    far = [[4, 5, 6, 7]] if (os.cpu_count() or 1) > 1 else []  # on a machine with one CPU nobody is pinned
    assert (ended.code, [f["ranks"] for f in found]) == (0, far)
    words = f"bound to CPUs {cpu}; the CPUs next to its GPU 4 (0000:9d:00.0) are 56-111"
    assert all(words in f["message"] for f in found)


def test_ranks_on_one_cpu_next_to_their_gpus_are_well(pinned):
    cpu = min(os.sched_getaffinity(0))
    ended = pinned(cpu, H100 + "".join(f"{n}.cpus {cpu}\n" for n in range(8)))
    assert (ended.code, [f["rule"] for f in ended.report["findings"]]) == (0, [])
