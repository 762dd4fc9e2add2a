"""Time spent waiting for a CPU, as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distcheck.probe.waiting import waited_for_cpu

_WORK = """
import os, sys, time
from distcheck.probe.waiting import waited_for_cpu
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
sys.stdin.readline()
before, until = waited_for_cpu(), time.monotonic() + 0.6
while time.monotonic() < until: pass
print(waited_for_cpu() - before)
"""


@pytest.mark.process
def test_two_threads_on_one_cpu_wait_for_each_other():
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _WORK, str(min(os.sched_getaffinity(0)))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for one in both:
        one.stdout.readline()
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    assert sum(float(one.communicate(timeout=60)[0]) for one in both) > 0.3


@pytest.mark.parametrize("text", [None, "", "12", "12 many 3"])
def test_a_kernel_without_the_counter_gives_zero(tmp_path, text):
    schedstat = tmp_path / "schedstat"
    if text is not None:
        schedstat.write_text(text)
    assert waited_for_cpu(schedstat) == 0.0
