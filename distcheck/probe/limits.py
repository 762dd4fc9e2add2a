"""Collect what this process and its children may use: cgroup limits, resource limits, namespaces."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing, legible
from distcheck.facts.host import CgroupLimit, CpuQuota, Limits
from distcheck.probe.cgroups import cgroup_of, memory_limit, number
from distcheck.probe.kernel_files import contents
from distcheck.probe.process import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable

_CAPS_BEYOND_NPROC = (1 << 21) | (1 << 24)
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE lift RLIMIT_NPROC, and so does uid 0 (linux/kernel/fork.c)."""
_NAMESPACES = ("ipc", "pid")
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}  # arch/x86/entry/syscalls, asm-generic/unistd.h


def limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process, for itself and for the ranks that it starts.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/
    """
    found = Limits(
        memory=_tightest("memory", _memory, root),
        cpu=_cpu(root),
        tasks=_tightest("pids", _tasks, root),
        user_tasks=_user_tasks(root),
        stack_bytes=resource.getrlimit(resource.RLIMIT_STACK)[0],  # -1 is RLIM_INFINITY
        address_space_bytes=resource.getrlimit(resource.RLIMIT_AS)[0],
        namespaces=_namespaces(root),
    )
    return legible(found)


def _tightest(controller: str, read: Callable[[Path, int], CgroupLimit | None], root: Path) -> CgroupLimit | None:
    """Return the limit, of the cgroup and its parents, that leaves the least."""
    cgroup = cgroup_of(controller, root)
    if isinstance(cgroup, Missing):
        return None
    found = [limit for folder in cgroup.levels() if (limit := read(folder, cgroup.version)) is not None]
    return min(found, key=lambda limit: limit.left, default=None)


def _memory(folder: Path, version: int) -> CgroupLimit | None:
    limit = memory_limit(folder, version)
    used = number(folder, "memory.current" if version == 2 else "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    prefix = "" if version == 2 else "total_"
    cache = sum(number(folder, "memory.stat", f"{prefix}{kind}") or 0 for kind in ("inactive_file", "active_file"))
    return CgroupLimit(limit=limit, used=max(0, used - cache), cgroup=str(folder))


def _tasks(folder: Path, _: int) -> CgroupLimit | None:
    limit, used = number(folder, "pids.max"), number(folder, "pids.current")
    return None if limit is None or used is None else CgroupLimit(limit=limit, used=used, cgroup=str(folder))


def _cpu(root: Path) -> CpuQuota | None:
    """Return the quota, of the cgroup and its parents, that allows the fewest CPUs."""
    cgroup = cgroup_of("cpu", root)
    if isinstance(cgroup, Missing):
        return None
    found = []
    for folder in cgroup.levels():
        quota, period = _quota(folder, cgroup.version)
        if quota is not None and period:
            periods, stopped = (number(folder, "cpu.stat", name) or 0 for name in ("nr_periods", "nr_throttled"))
            found.append(CpuQuota(quota / period, periods, stopped, str(folder)))
    return min(found, key=lambda quota: quota.cpus, default=None)


def _quota(folder: Path, version: int) -> tuple[int | None, int | None]:
    """Return the microseconds of CPU time in each period, None without a limit; and the period."""
    if version == 1:
        return number(folder, "cpu.cfs_quota_us"), number(folder, "cpu.cfs_period_us")
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return (None if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        return None, None


def _user_tasks(root: Path) -> tuple[int, int] | None:
    """Return RLIMIT_NPROC and the tasks of this user; None if nothing limits them."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    uid = os.getuid()
    if soft == resource.RLIM_INFINITY or uid == 0 or mask_of("self", "CapEff", root) & _CAPS_BEYOND_NPROC:
        return None
    tasks = 0
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            lines = dict(line.partition(":")[::2] for line in contents(folder / "status").splitlines())
            if int(lines["Uid"].split()[0]) == uid:
                tasks += int(lines["Threads"])
        except (KeyError, ValueError, IndexError):
            continue  # it has ended
    return soft, tasks


def _namespaces(root: Path) -> dict[str, str]:
    found = {}
    for name in _NAMESPACES:
        try:
            found[name] = str((root / "proc/self/ns" / name).readlink())
        except OSError:
            continue
    return found


def memory_policy_error() -> str | None:
    """Return the error of reading this thread's memory policy, '' if it works, None where the call is unknown.

    Docker's seccomp profile denies it without CAP_SYS_NICE. It changes nothing.

    Source: https://man7.org/linux/man-pages/man2/get_mempolicy.2.html
    """
    number_of_call = _GET_MEMPOLICY.get(os.uname().machine)
    if number_of_call is None:
        return None
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    failed = call(ctypes.c_long(number_of_call), None, None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))
    return os.strerror(ctypes.get_errno()) if failed else ""
