"""Collect the state of a node's operating system: memory, load, stuck processes, settings that affect speed."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.host import HostFacts, StuckProcess

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h
_STUCK_SECONDS = 1.0
"""How long a process must wait without being scheduled: a disk answers in that time, a dead file server does not."""
_MOST_STUCK = 16
_FROZEN = "refrigerator"
"""Where the processes of a frozen cgroup v1 wait, also in state D."""
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_CHOSEN = re.compile(r"\[(\S+)\]")
_SETTINGS = {
    "transparent_hugepage": "sys/kernel/mm/transparent_hugepage/enabled",
    "transparent_hugepage/defrag": "sys/kernel/mm/transparent_hugepage/defrag",
    "numa_balancing": "proc/sys/kernel/numa_balancing",
    "smt": "sys/devices/system/cpu/smt/control",
    "cpufreq driver": "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "intel_pstate/no_turbo": "sys/devices/system/cpu/intel_pstate/no_turbo",
    "cpufreq/boost": "sys/devices/system/cpu/cpufreq/boost",
    "ptrace_scope": "proc/sys/kernel/yama/ptrace_scope",
}
"""Files with one word, or with several and the chosen one in brackets."""
_EACH_CPU = {"scaling_governor", "scaling_max_freq", "cpuinfo_max_freq"}
"""Files of every CPU's cpufreq folder."""


class _Task(NamedTuple):
    """A process as /proc/PID/stat shows it."""

    name: str
    state: str
    threads: int
    kernel: bool


async def health(root: Path = Path("/")) -> HostFacts | Missing:
    """Return the state of this node; takes a second more where processes seem stuck.

    Reads only files of /proc and /sys that do not wait for other processes.
    """
    try:
        memory = _fields(root / "proc/meminfo")
        load, tasks = (root / "proc/loadavg").read_text().split()[0:4:3]
        uptime = float((root / "proc/uptime").read_text().split()[0])
        processes = _processes(root)
        suspects = {pid: _switches(root, pid) for pid, task in processes.items() if _suspicious(task)}
        if suspects:
            await asyncio.sleep(_STUCK_SECONDS)
        return HostFacts(
            memory_bytes=memory["MemTotal"],
            available_bytes=memory["MemAvailable"],
            load=float(load),
            uptime_seconds=uptime,
            tasks=int(tasks.partition("/")[2]),
            most_tasks=min(_number(root / "proc/sys/kernel" / name) for name in ("threads-max", "pid_max")),
            zombies=sum(task.state == "Z" and task.threads <= 1 for task in processes.values()),
            stuck=_stuck(root, suspects),
            oom_kills=_fields(root / "proc/vmstat").get("oom_kill"),
            huge_page_bytes=memory.get("HugePages_Free", 0) * memory.get("Hugepagesize", 0),
            cpu_model=_cpu_model(root),
            settings=_settings(root),
            throttled_seconds=_throttled(root),
        )
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Missing(reason=f"the state of the node cannot be read: {error}")


def _fields(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number in each line; kB are bytes then."""
    words = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {w[0]: int(w[1]) * (1024 if w[2:] == ["kB"] else 1) for w in words if len(w) >= 2 and w[1].isdecimal()}


def _number(file: Path) -> int:
    return int(file.read_text())


def _processes(root: Path) -> dict[int, _Task]:
    found = {}
    for entry in os.scandir(root / "proc"):
        if not entry.name.isdecimal():
            continue
        task = _task(root / "proc", int(entry.name))
        if task is not None:
            found[int(entry.name)] = task
    return found


def _task(proc: Path, pid: int) -> _Task | None:
    """Return a process, None if it has ended. Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return _Task(name, fields[0], int(fields[17]), bool(int(fields[6]) & _KERNEL_THREAD))
    except (OSError, ValueError, IndexError):
        return None


def _suspicious(task: _Task) -> bool:
    return not task.kernel and (task.state == "D" or (task.state == "Z" and task.threads > 1))


def _switches(root: Path, pid: int) -> tuple[int, int]:
    """Return how often a process gave up a CPU and was made to; the same numbers later mean that it never ran."""
    try:
        lines = (root / "proc" / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return -1, -1
    counted = [int(line.split()[-1]) for line in lines if "ctxt_switches" in line]
    return (counted[0], counted[1]) if len(counted) == 2 else (-1, -1)


def _stuck(root: Path, suspects: dict[int, tuple[int, int]]) -> tuple[StuckProcess, ...]:
    """Return those of the suspects that have not run since."""
    found = []
    for pid, before in suspects.items():
        task = _task(root / "proc", pid)
        if task is None or not _suspicious(task) or _switches(root, pid) != before:
            continue
        if task.state == "Z" and not _blocked_threads(root, pid):
            continue  # its main thread has ended by itself, and the others work
        function = _waits_in(root, pid)
        if _FROZEN not in function:
            state: Literal["blocked", "ending"] = "blocked" if task.state == "D" else "ending"
            found.append(StuckProcess(pid=pid, name=task.name, state=state, waits_in=function))
    return tuple(found[:_MOST_STUCK])


def _blocked_threads(root: Path, pid: int) -> bool:
    try:
        threads = [int(entry.name) for entry in os.scandir(root / "proc" / str(pid) / "task")]
    except OSError:
        return False
    return any(t is not None and t.state == "D" for t in (_task(root / "proc" / str(pid) / "task", n) for n in threads))


def _waits_in(root: Path, pid: int) -> str:
    try:
        name = (root / "proc" / str(pid) / "wchan").read_text().strip()
    except OSError:
        return ""
    return "" if name == "0" else name[:64]


def _cpu_model(root: Path) -> str:
    try:
        with (root / "proc/cpuinfo").open() as file:
            found = _MODEL.search(file.read(4096))
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _settings(root: Path) -> dict[str, str]:
    """Return the settings that exist here; of a setting of each CPU, the values with the number of CPUs."""
    found = {}
    for name, file in _SETTINGS.items():
        try:
            text = (root / file).read_text().strip()
        except OSError:
            continue
        chosen = _CHOSEN.search(text)
        found[name] = chosen[1] if chosen else text[:64]
    values: dict[str, set[str]] = {}
    for folder in (root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*"):
        for name in _EACH_CPU:
            try:
                values.setdefault(name, set()).add((folder / name).read_text().strip()[:64])
            except OSError:
                continue
    return found | {name: ", ".join(sorted(chosen)) for name, chosen in sorted(values.items()) if chosen}


def _throttled(root: Path) -> float | None:
    """Return how long the hottest CPU was slowed down by heat since the boot.

    Source: https://docs.kernel.org/admin-guide/abi-testing.html (thermal_throttle/package_throttle_total_time_ms)
    """
    times = []
    for file in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_total_time_ms"):
        try:
            times.append(_number(file) / 1000)
        except (OSError, ValueError):
            continue
    return max(times, default=None)
