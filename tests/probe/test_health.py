"""The state of a node as made-up /proc and /sys show it, and as this machine does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.host import StuckProcess
from distcheck.probe import health

KERNEL, NO_PROGRAM_YET = 0x00200000, 0x00000040


class Machine:
    """The files of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("proc/meminfo", "MemTotal: 64 kB\nMemAvailable: 48 kB\nHugePages_Free: 3\nHugepagesize: 2048 kB\n")
        self.file("proc/loadavg", "1.50 0.70 0.30 3/412 9999\n")
        self.file("proc/uptime", "5000.25 9000.00\n")
        self.file("proc/vmstat", "nr_free_pages 7\noom_kill 5\n")
        self.file("proc/sys/kernel/threads-max", "50000\n")
        self.file("proc/sys/kernel/pid_max", "32768\n")

    def file(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid, state, name="python", *, threads=1, flags=0, wchan="0", parent=1, memory="0 0", status=""):
        fields = [state, str(parent), "1", "1", "0", "-1", str(flags), *"0" * 10, str(threads), "0", "0", memory]
        self.file(f"proc/{pid}/stat", f"{pid} ({name}) {' '.join(fields)}\n")
        self.file(f"proc/{pid}/status", f"{status}voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n")
        self.file(f"proc/{pid}/wchan", wchan)

    def state(self):
        return asyncio.run(health.system(self.root))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_STUCK_SECONDS", 0.02)
    return Machine(tmp_path)


def test_memory_load_tasks_and_kills_are_read(machine):
    found = machine.state()
    assert (found.memory_bytes, found.available_bytes, found.huge_page_bytes) == (65536, 49152, 3 * 2048 * 1024)
    assert (found.load, found.tasks, found.most_tasks, found.uptime_seconds) == (1.5, 412, 32768, 5000.25)
    assert (found.oom_kills, found.throttled_seconds, found.stuck) == (5, None, ())


def test_settings_are_those_of_the_kernel_and_of_all_cpus(machine):
    machine.file("proc/sys/kernel/numa_balancing", "1\n")
    for n, governor in enumerate(("performance", "powersave", "performance")):
        machine.file(f"sys/devices/system/cpu/cpufreq/policy{n}/scaling_governor", f"{governor}\n")
    machine.file("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms", "1500\n")
    machine.file("sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_total_time_ms", "2500\n")
    found = machine.state()
    assert found.settings == {"numa_balancing": "1", "scaling_governor": "performance, powersave"}
    assert found.throttled_seconds == 2.5


def test_a_process_that_stays_blocked_is_stuck_whatever_the_kernel_calls_it_and_kernel_threads_are_not(machine):
    machine.process(10, "D", "python3 (x)", wchan="nfs_wait_bit_killable")
    machine.process(11, "D", "kworker", flags=KERNEL)
    machine.process(12, "S")
    machine.process(13, "T")  # stopped by a signal
    machine.process(14, "t", threads=2)  # and by a debugger
    machine.process(15, "D", wchan="__refrigerator")
    stuck = [StuckProcess(10, "python3 (x)", "blocked", "nfs_wait_bit_killable")]
    assert machine.state().stuck == (*stuck, StuckProcess(15, "python", "blocked", "__refrigerator"))


_V1 = {"proc/self/mounts": "cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0\n", "proc/self/cgroup": "6:freezer:/\n"}
_V2 = {"proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "proc/self/cgroup": "0::/user.slice\n"}
_V1_JOB, _V2_JOB = "sys/fs/cgroup/freezer/docker", "sys/fs/cgroup/docker"
_IN_POD = {**_V1, "proc/self/cgroup": "6:freezer:/pod/a\n"}


@pytest.mark.parametrize(
    ("files", "own", "stuck"),
    [
        ({**_V1, f"{_V1_JOB}/a/freezer.state": "FROZEN\n"}, "6:freezer:/docker/a", False),
        ({**_V1, f"{_V1_JOB}/freezer.state": "FROZEN\n", f"{_V1_JOB}/a/x": ""}, "6:freezer:/docker/a", False),
        ({**_V1, f"{_V1_JOB}/a/freezer.state": "THAWED\n"}, "6:freezer:/docker/a", True),
        ({**_V1, f"{_V1_JOB}/a/freezer.state": "FREEZING\n"}, "6:freezer:/docker/a", True),  # something holds it up
        (_V1, "6:freezer:/", True),
        (_IN_POD, "6:freezer:/pod/b", False),  # not to be seen from this container
        (_IN_POD, "6:freezer:/pod/a", True),  # this container itself
        ({**_V2, f"{_V2_JOB}/a/cgroup.events": "populated 1\nfrozen 1\n"}, "0::/docker/a", False),
        ({**_V2, f"{_V2_JOB}/cgroup.events": "frozen 1\n", f"{_V2_JOB}/a/x": ""}, "0::/docker/a", False),
        ({**_V2, f"{_V2_JOB}/a/cgroup.events": "populated 1\nfrozen 0\n"}, "0::/docker/a", True),
        (_V2, "0::/../docker/a", True),
        ({}, "0::/docker/a", True),
    ],
)
def test_a_process_of_a_frozen_cgroup_is_not_stuck(machine, files, own, stuck):
    machine.process(10, "D", wchan="hrtimer_nanosleep")
    for name, text in {**files, "proc/10/cgroup": f"{own}\n"}.items():
        machine.file(name, text)
    assert [p.pid for p in machine.state().stuck] == ([10] if stuck else [])


@pytest.mark.parametrize(
    ("child", "stuck"),
    [
        ({"flags": NO_PROGRAM_YET, "memory": "4096 7"}, False),
        ({"flags": NO_PROGRAM_YET, "memory": "4096 9"}, True),  # of fork: it has memory of its own
        ({"flags": 0, "memory": "4096 7"}, True),
    ],
)
def test_a_process_that_waits_for_its_child_of_vfork_is_not_stuck(machine, child, stuck):
    machine.process(10, "D", memory="4096 7")
    machine.process(11, "T", parent=10, **child)
    assert [p.pid for p in machine.state().stuck] == ([10] if stuck else [])


def test_a_process_whose_core_is_written_is_not_stuck(machine):
    machine.process(10, "D", status="CoreDumping:\t1\n")
    assert machine.state().stuck == ()


def test_a_process_that_ran_meanwhile_is_not_stuck(machine, monkeypatch):
    machine.process(10, "D")
    sleep = asyncio.sleep

    async def later(seconds):
        machine.file("proc/10/status", "voluntary_ctxt_switches:\t13\nnonvoluntary_ctxt_switches:\t3\n")
        await sleep(seconds)

    monkeypatch.setattr(health.asyncio, "sleep", later)
    assert machine.state().stuck == ()


@pytest.mark.parametrize(
    ("own", "others", "waiting", "stuck"),
    [
        ("fuse.sshfs", "fuse.sshfs", None, False),
        ("", "fuse", None, False),  # who is not root cannot read whether it owes an answer
        ("", "fuse", "1", False),
        ("", "fuse", "0", True),
        ("fuse", "", "1", True),
        ("", "fusectl", None, True),
    ],
)
def test_a_fuse_server_of_another_container_is_not_the_jobs(machine, own, others, waiting, stuck):
    machine.process(10, "Z", threads=2)  # it was killed, so that only its other thread still has mounts
    machine.file("proc/10/task/11/stat", f"11 (x) D {'0 ' * 22}")
    for pid, device, kind in ("self", 7, own), ("10/task/11", 8, others):
        mount = f"2 1 0:{device} / /m rw - {kind or 'xfs'} b rw\n"
        machine.file(f"proc/{pid}/mountinfo", f"1 0 0:3 / / rw - ext4 a rw\n{mount}")
    if waiting is not None:
        machine.file("sys/fs/fuse/connections/8/waiting", f"{waiting}\n")
    assert [p.pid for p in machine.state().stuck] == ([10] if stuck else [])


def test_zombies_are_counted_and_one_with_a_blocked_thread_is_ending(machine):
    machine.process(10, "Z")
    machine.process(11, "Z")
    machine.process(12, "Z", threads=4)
    machine.process(13, "Z", threads=4)
    for thread, state in (("12/task/14", "D"), ("13/task/15", "S")):
        machine.file(f"proc/{thread}/stat", f"1 (x) {state} " + "0 " * 22)
    found = machine.state()
    assert (found.zombies, found.stuck) == (2, (StuckProcess(12, "python", "ending"),))


ETC, USR = "etc/systemd/logind.conf", "usr/lib/systemd/logind.conf"


@pytest.mark.parametrize(
    ("files", "removed"),
    [
        ({ETC: "[Login]\n#RemoveIPC=yes\n"}, True),
        ({ETC: "[Login]\n#RemoveIPC=no\n"}, False),
        ({ETC: "[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n"}, False),
        ({ETC: "[Login]\n#RemoveIPC=no\n  RemoveIPC = yes \n"}, True),
        ({ETC: "[Login]\nRemoveIPC=yes\n; RemoveIPC = no\n"}, True),
        ({ETC: "[Login]\nRemoveIPC=no\nRemoveIPC=on\n"}, True),
        ({ETC: "[Login]\nRemoveIPC=yes\nRemoveIPC=maybe\n"}, True),
        ({ETC: "RemoveIPC=yes\n"}, False),  # outside of its section
        ({USR: "[Login]\nRemoveIPC=yes\n", ETC: "[Login]\n"}, False),
        ({ETC: "[Login]\nRemoveIPC=no\n", f"{USR}.d/90-site.conf": "[Login]\nRemoveIPC=yes\n",
          f"{ETC}.d/10-jobs.conf": "[Login]\nRemoveIPC=no\n"}, True),
        ({f"{USR}.d/90-site.conf": "[Login]\nRemoveIPC=yes\n", f"{ETC}.d/90-site.conf": ""}, False),
        ({ETC: "[Login]\nRemoveIPC=yes\n", f"{ETC}.d/50-jobs.conf": "[Login]\n#RemoveIPC=no\n"}, True),
        ({USR: "#RemoveIPC=yes\n"}, True),
        ({ETC: "#RemoveIPC=yes\n", f"{ETC}.d/50-jobs.conf": "[Login]\nRemoveIPC=no\n"}, False),
        ({}, False),
    ],
)  # fmt: skip
def test_logind_removes_the_files_of_ordinary_users_by_its_configuration(machine, monkeypatch, files, removed):
    monkeypatch.setattr(health.os, "getuid", lambda: 1000)
    for name, text in files.items():
        machine.file(name, text)
    assert machine.state().removes_ipc is False, "logind does not run"
    machine.file("run/systemd/users/1", "")
    assert machine.state().removes_ipc is removed
    monkeypatch.setattr(health.os, "getuid", lambda: 0)
    assert machine.state().removes_ipc is False, "root's files stay"


def test_a_folder_of_logind_that_may_not_be_entered_costs_no_other_fact(machine, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    machine.file("run/systemd/users/1", "")
    machine.file("etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes\n")
    monkeypatch.setattr(health.os, "getuid", lambda: 1000)
    for name in ("exists", "read_text"):
        of_all = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda p, *w, f=of_all: denied() if p.name == "logind.conf" else f(p, *w))
    assert machine.state().removes_ipc is False


@pytest.mark.parametrize("file", ["proc/meminfo", "proc/loadavg", "proc/sys/kernel/pid_max"])
def test_a_file_that_cannot_be_read_is_the_reason(machine, file):
    machine.file(file, "nothing\n")
    found = machine.state()
    assert isinstance(found, Missing)
    assert "cannot be read" in found.reason


_VFORK = """
import ctypes, time
libc = ctypes.CDLL(None)
print(flush=True)
libc.vfork() or (time.sleep(60), libc._exit(0))
"""


@pytest.mark.process
def test_a_real_process_that_the_kernel_holds_is_found_unless_it_waits_for_its_child(monkeypatch):
    # The parent of a vfork waits in the kernel, in state D, until its child ends or runs a program. It is the one way
    # into that state without a broken device; it must be gone before another test looks with the usual second.
    monkeypatch.setattr(health, "_STUCK_SECONDS", 0.1)
    child = subprocess.Popen([sys.executable, "-c", _VFORK], stdout=subprocess.PIPE, start_new_session=True)
    try:
        child.stdout.readline()
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "D":
            pass
        assert child.pid not in {p.pid for p in asyncio.run(health.system()).stuck}
        monkeypatch.setattr(health, "_waits_for_child", lambda *_: False)
        assert [p.state for p in asyncio.run(health.system()).stuck if p.pid == child.pid] == ["blocked"]
    finally:
        os.killpg(child.pid, 9)
        child.communicate()
