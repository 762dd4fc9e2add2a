"""Limits of a process as cgroups of both versions show them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.facts.host import CgroupLimit, CpuQuota
from distcheck.probe.limits import limits
from distcheck.probe.waiting import throttled

MIB = 1 << 20


class Machine:
    """A /proc/self and the hierarchies of one cgroup version, in a folder."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version, self.root = version, folder
        self.own = "job/step"
        proc = folder / "proc" / "self"
        proc.mkdir(parents=True)
        names = ("cpu,cpuacct", "memory", "pids")
        if version == 2:
            (proc / "cgroup").write_text(f"0::/{self.own}\n")
            (proc / "mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        else:
            (proc / "cgroup").write_text("".join(f"{n}:{name}:/{self.own}\n" for n, name in enumerate(names, 1)))
            lines = (f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in names)
            (proc / "mounts").write_text("".join(lines))
        for name in names:
            self.folder(name).mkdir(parents=True, exist_ok=True)

    def folder(self, controller: str, group: str = "job/step") -> Path:
        return self.root / "sys/fs/cgroup" / ("" if self.version == 2 else controller) / group

    def write(self, controller: str, group: str, **files: object) -> None:
        for name, text in files.items():
            (self.folder(controller, group) / name.replace("__", ".")).write_text(f"{text}\n")

    def memory(self, group: str, limit: object, used: int, cache: int = 0) -> None:
        stat = f"anon 1\ninactive_file {cache}\nactive_file 0\n"
        if self.version == 2:
            self.write("memory", group, memory__max=limit, memory__current=used, memory__stat=stat)
        else:
            none, total = 9223372036854771712, f"inactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
            limit = none if limit == "max" else limit
            self.write("memory", group, **{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used})
            self.write("memory", group, memory__stat=total)

    def cpu(self, group: str, quota: object, periods: int, stopped: int, seconds: float) -> None:
        counted = f"nr_periods {periods}\nnr_throttled {stopped}\n"
        if self.version == 2:
            stat = f"{counted}throttled_usec {int(seconds * 1e6)}\n"
            self.write("cpu,cpuacct", group, cpu__max=f"{quota} 100000", cpu__stat=stat)
        else:
            quota = -1 if quota == "max" else quota
            stat = f"{counted}throttled_time {int(seconds * 1e9)}\n"
            self.write("cpu,cpuacct", group, **{"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000})
            self.write("cpu,cpuacct", group, cpu__stat=stat)


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def machine(request, tmp_path):
    return Machine(tmp_path, request.param)


def test_the_limit_that_leaves_the_least_is_the_tightest(machine):
    machine.memory("job", 1000 * MIB, 900 * MIB, cache=300 * MIB)
    machine.memory("job/step", 500 * MIB, 50 * MIB)
    where = str(machine.folder("memory", "job"))
    assert limits(machine.root).memory == CgroupLimit(limit=1000 * MIB, used=600 * MIB, cgroup=where)
    assert limits(machine.root).memory.left == 400 * MIB


def test_a_cpu_quota_is_read_with_how_often_it_stopped_the_cgroup(machine):
    machine.cpu("job", 150000, 900, 300, 4.5)
    machine.cpu("job/step", "max", 0, 0, 4.5)
    where = str(machine.folder("cpu,cpuacct", "job"))
    assert limits(machine.root).cpu == CpuQuota(cpus=1.5, periods=900, throttled_periods=300, cgroup=where)
    assert throttled(machine.root) == 4.5


def test_tasks_are_counted_against_their_limit(machine):
    machine.write("pids", "job", pids__max=100, pids__current=90)
    machine.write("pids", "job/step", pids__max="max", pids__current=5)
    assert limits(machine.root).tasks == CgroupLimit(limit=100, used=90, cgroup=str(machine.folder("pids", "job")))


def test_a_container_that_sees_its_cgroup_as_the_root_is_read_there(machine):
    own = machine.folder("cpu,cpuacct")
    top = machine.folder("cpu,cpuacct", "")
    own.rename(machine.root / "elsewhere")
    machine.cpu("", 150000, 900, 300, 4.5)
    assert limits(machine.root).cpu == CpuQuota(cpus=1.5, periods=900, throttled_periods=300, cgroup=str(top))


def test_each_controller_is_read_in_the_version_that_has_it(tmp_path):
    first, second = Machine(tmp_path / "1", 1), Machine(tmp_path / "2", 2)
    first.cpu("job", 50000, 0, 0, 0)
    second.memory("job/step", 500 * MIB, 50 * MIB)
    proc = first.root / "proc/self"
    (proc / "cgroup").write_text("3:cpu,cpuacct:/job/step\n1:name=systemd:/x\n0::/job/step\n")
    (proc / "mounts").write_text(
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    )
    (second.root / "sys/fs/cgroup").rename(first.root / "sys/fs/cgroup/unified")
    found = limits(first.root)
    assert (found.cpu.cpus, found.memory.left) == (0.5, 450 * MIB)


def test_no_limit_is_none(machine):
    machine.memory("job/step", "max", 5)
    machine.cpu("job/step", "max", 0, 0, 0)
    found = limits(machine.root)
    assert (found.memory, found.cpu, found.tasks) == (None, None, None)


def test_without_cgroups_nothing_is_limited(tmp_path):
    found = limits(tmp_path)
    assert (found.memory, found.cpu, found.tasks, found.namespaces) == (None, None, None, {})


_AS_NOBODY = r"""
import ctypes, os, resource
from distcheck.probe.limits import limits
os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(15, b"trainieren\xc3\xa4\xc3\xa4\xc3")  # cut inside a letter
resource.setrlimit(resource.RLIMIT_NPROC, (77, 88))
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
found = limits()
print(found.user_tasks, found.stack_bytes, found.address_space_bytes)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.process
def test_the_processes_of_a_user_are_counted_against_rlimit_nproc():
    told = subprocess.run([sys.executable, "-c", _AS_NOBODY], capture_output=True, text=True, timeout=60, check=True)
    soft, tasks, stack, space = told.stdout.replace("(", "").replace(",", " ").replace(")", "").split()
    assert (soft, stack, space) == ("77", "-1", str(1 << 40))
    assert int(tasks) >= 1
    assert limits().user_tasks is None, "root has no such limit"
    assert limits().stack_bytes == resource.getrlimit(resource.RLIMIT_STACK)[0]


_POLICY = """
import ctypes, os
from distcheck.probe.limits import limits
number = {"x86_64": 238, "aarch64": 237}[os.uname().machine]
before = limits().memory_policy
failed = ctypes.CDLL(None).syscall(ctypes.c_long(number), 2, ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))
print(repr(before), failed, limits().memory_policy)
"""


@pytest.mark.skipif(os.uname().machine not in {"x86_64", "aarch64"}, reason="the number of set_mempolicy is unknown")
@pytest.mark.process
def test_the_memory_policy_of_a_real_process_is_read():
    told = subprocess.run([sys.executable, "-c", _POLICY], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() in (["''", "0", "bind", "0"], ["''", "-1"]), "without NUMA the kernel has no such call"
