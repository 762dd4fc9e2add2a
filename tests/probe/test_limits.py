"""Limits of a process as cgroups of both versions show them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from made.cgroups import MIB, Machine

from distcheck.facts.host import CgroupLimit, CpuQuota
from distcheck.probe import limits as limits_module
from distcheck.probe.limits import limits, memory_policy_error
from distcheck.probe.waiting import throttled


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


def test_a_memory_policy_that_cannot_be_read_has_an_error_where_the_call_is_known(monkeypatch):
    monkeypatch.setattr(limits_module, "_GET_MEMPOLICY", {os.uname().machine: 100000})
    assert memory_policy_error() == "Function not implemented"
    monkeypatch.setattr(limits_module, "_GET_MEMPOLICY", {})
    assert memory_policy_error() is None
