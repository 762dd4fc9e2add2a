"""Ranks that are pinned to CPUs, next to their GPUs and far from them."""

from __future__ import annotations

import os
import sys

from made.nvml_jobs import PROFILES


def test_ranks_on_one_cpu_far_from_their_gpus_are_named(distcheck, fake_nvml):
    cpu = min(os.sched_getaffinity(0))
    assert cpu < 56, "the profile's first four GPUs are next to CPUs 0-55"
    program = ["taskset", "--cpu-list", str(cpu), sys.executable, "-m", "distcheck"]
    env = fake_nvml.variables(PROFILES["dgx_h100"])
    ended = distcheck("gpu", "--nproc", "8", "--format", "json", env=env, program=program)
    found = [f for f in ended.report["findings"] if f["rule"] == "gpu-far-from-cpu"]
    far = [[4, 5, 6, 7]] if (os.cpu_count() or 1) > 1 else []  # on a machine with one CPU nobody is pinned
    assert (ended.code, [f["ranks"] for f in found]) == (0, far)
    words = f"bound to CPUs {cpu}; the CPUs next to its GPU 4 (0000:9d:00.0) are 56-111"
    assert all(words in f["message"] for f in found)
