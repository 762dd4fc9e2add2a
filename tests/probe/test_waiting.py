"""Time spent waiting for a CPU, as the kernel counts it."""

from __future__ import annotations

import os

import pytest

from distcheck.probe.waiting import CpuWait, throttled, waited_for_cpu


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 0.0), ("", 0.0), ("12", 0.0), ("12 many 3", 0.0), ("9 2500000000 3", 2.5)]
)
def test_the_kernel_counts_what_a_process_waited_in_the_second_place_if_at_all(tmp_path, text, seconds):
    schedstat = tmp_path / "schedstat"
    if text is not None:
        schedstat.write_text(text)
    assert waited_for_cpu(schedstat) == seconds


@pytest.fixture
def machine(tmp_path):
    """Write what the kernel shows of a process with two threads in a cgroup below one with a CPU limit."""

    def write(*waited_seconds, idle=0, busy=0, throttled_seconds=0.0, limited=True):
        proc, folder = tmp_path / "proc/self", tmp_path / "sys/fs/cgroup/job/step"
        proc.mkdir(parents=True, exist_ok=True)
        for number, seconds in enumerate(waited_seconds, start=7):
            (proc / f"task/{number}").mkdir(parents=True, exist_ok=True)
            (proc / f"task/{number}/schedstat").write_text(f"1 {int(seconds * 1e9)} 9\n")
        own = "".join(f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0\n" for cpu in sorted(os.sched_getaffinity(0)))
        (tmp_path / "proc/stat").write_text(f"cpu 9 9 9 9\n{own}cpu9999 0 0 0 500 0 0 0 0 0 0\n")
        folder.mkdir(parents=True, exist_ok=True)
        (proc / "cgroup").write_text("0::/job/step\n")
        (proc / "mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n" if limited else "")
        (folder / "cpu.stat").write_text("usage_usec 9\nthrottled_usec 0\n")
        (folder.parent / "cpu.stat").write_text(f"usage_usec 9\nthrottled_usec {int(throttled_seconds * 1e6)}\n")
        return tmp_path

    return write


def test_the_limit_of_a_cgroup_further_out_throttles_too(machine):
    assert throttled(machine(throttled_seconds=1.5)) == 1.5


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ({"busy": 100}, 5.0),
        ({"busy": 100, "throttled_seconds": 2.5}, 0.5),  # of the first thread, which waited longer
        ({"busy": 50, "idle": 50}, 2.5),
        ({"idle": 100}, 0.0),
        ({"busy": 100, "throttled_seconds": 2.5, "limited": False}, 5.0),
        ({}, 5.0),
    ],
)
def test_what_a_limit_holds_and_what_waits_beside_idle_cpus_is_no_wait_for_others(machine, after, seconds):
    limited = after.get("limited", True)
    wait = CpuWait(root := machine(1.0, 1.0, limited=limited))
    machine(4.0, 3.0, **after)
    assert wait.seconds() == pytest.approx(seconds), root
