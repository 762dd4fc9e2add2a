"""Collect the state of a node's operating system: memory, load, stuck processes, settings that affect speed."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.host import HostFacts, StuckProcess
from distcheck.probe import leftovers
from distcheck.probe.cgroups import frozen
from distcheck.probe.kernel_files import contents, integer

_KERNEL_THREAD, _NO_PROGRAM_YET = 0x00200000, 0x00000040  # PF_KTHREAD, PF_FORKNOEXEC: linux/sched.h
_STUCK_SECONDS = 3.0
"""How long a process must wait without being scheduled: a disk answers in that time, a dead file server does not."""
_LOOKS = 30
"""How often it is looked at meanwhile."""
_MOST_STUCK = 16
_FUSE = ("fuse ", "fuse.", "fuseblk ")
_REMOVE_IPC = re.compile(r"([#;]?)\s*RemoveIPC\s*=\s*(\w+)")
_BOOLEANS = dict.fromkeys(("1", "yes", "y", "true", "t", "on"), "yes") | dict.fromkeys(
    ("0", "no", "n", "false", "f", "off"), "no"
)
_FIRST_USER, _NOBODY = 1000, 65534
_SETTINGS = {
    "numa_balancing": "proc/sys/kernel/numa_balancing",
    "cpufreq driver": "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
}
"""Files with one word."""
_EACH_CPU = {"scaling_governor", "scaling_max_freq", "cpuinfo_max_freq"}
"""Files of every CPU's cpufreq folder."""


class _Task(NamedTuple):
    """A process as /proc/PID/stat shows it."""

    name: str
    state: str
    parent: int
    flags: int
    threads: int
    memory: tuple[str, str]
    """Its virtual and its resident memory: a child of vfork uses its parent's."""


async def health(seconds: float) -> HostFacts | Missing:
    """Return the state of this node within `seconds`, with the files of ended jobs in /dev/shm."""
    state, files = await asyncio.gather(system(), leftovers.leftovers(seconds))
    return state if isinstance(state, Missing) else msgspec.structs.replace(state, leftovers=files)


async def system(root: Path = Path("/")) -> HostFacts | Missing:
    """Return the state of this node's kernel; takes three seconds more where processes seem stuck.

    Reads only files of /proc and /sys that do not wait for other processes.
    """
    try:
        memory = _fields(root / "proc/meminfo")
        load, tasks = (root / "proc/loadavg").read_text().split()[0:4:3]
        uptime = float((root / "proc/uptime").read_text().split()[0])
        processes = _processes(root)
        stuck = await _stuck(root, {pid for pid, task in processes.items() if _suspicious(task)})
        return HostFacts(
            memory_bytes=memory["MemTotal"],
            available_bytes=memory["MemAvailable"],
            load=float(load),
            uptime_seconds=uptime,
            tasks=int(tasks.partition("/")[2]),
            running=int(tasks.partition("/")[0]),
            most_tasks=min(_number(root / "proc/sys/kernel" / name) for name in ("threads-max", "pid_max")),
            zombies=sum(task.state == "Z" and task.threads <= 1 for task in processes.values()),
            stuck=stuck,
            oom_kills=_fields(root / "proc/vmstat").get("oom_kill"),
            huge_page_bytes=memory.get("HugePages_Free", 0) * memory.get("Hugepagesize", 0),
            settings=_settings(root),
            throttled_seconds=_throttled(root),
            removes_ipc=_removes_ipc(root, os.getuid()),
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
        return _Task(name, fields[0], int(fields[1]), int(fields[6]), int(fields[17]), (fields[20], fields[21]))
    except (OSError, ValueError, IndexError):
        return None


def _suspicious(task: _Task) -> bool:
    return not task.flags & _KERNEL_THREAD and (task.state == "D" or (task.state == "Z" and task.threads > 1))


def _switches(root: Path, pid: int) -> list[int] | None:
    """Return how often a process gave up a CPU, and was made to; None if it has ended or hides that.

    The same numbers later mean that it never ran.
    """
    lines = contents(root / "proc" / str(pid) / "status").splitlines()
    return [int(line.split()[-1]) for line in lines if "ctxt_switches" in line] or None


async def _stuck(root: Path, suspects: set[int]) -> tuple[StuckProcess, ...]:
    """Return those of the suspects that do not run for three seconds; less long if all of them do."""
    seen = {pid: counted for pid in suspects if (counted := _switches(root, pid)) is not None}
    for _ in range(_LOOKS):
        if not seen:
            return ()
        await asyncio.sleep(_STUCK_SECONDS / _LOOKS)
        seen = {pid: before for pid, before in seen.items() if _still(root, pid) and _switches(root, pid) == before}
    found, processes = [], _processes(root) if seen else {}
    for pid in sorted(seen.keys() & processes):
        task, thread = processes[pid], _blocked_thread(root / "proc" / str(pid))
        if not (
            frozen(pid, root) or _waits_for_child(pid, processes) or _dumps(root, pid) or _of_other_fuse(root, thread)
        ):
            state: Literal["blocked", "ending"] = "blocked" if task.state == "D" else "ending"
            found.append(StuckProcess(pid=pid, name=task.name, state=state, waits_in=_waits_in(thread)))
    return tuple(found[:_MOST_STUCK])


def _still(root: Path, pid: int) -> bool:
    """Return whether a process still waits in the kernel, or has ended but for threads that do.

    A process whose main thread has ended by itself is a zombie too, while its other threads work.
    """
    task = _task(root / "proc", pid)
    return (
        task is not None
        and _suspicious(task)
        and (task.state == "D" or _blocked_thread(root / "proc" / str(pid)).parent.name == "task")
    )


def _blocked_thread(process: Path) -> Path:
    """Return the folder of a process's first thread in state D, the process's own without one."""
    try:
        threads = sorted(int(entry.name) for entry in os.scandir(process / "task"))
    except OSError:
        return process
    blocked = (n for n in threads if (task := _task(process / "task", n)) is not None and task.state == "D")
    first = next(blocked, None)
    return process if first is None else process / "task" / str(first)


def _waits_in(thread: Path) -> str:
    name = contents(thread / "wchan")
    return "" if name == "0" else name[:64]


def _waits_for_child(pid: int, processes: dict[int, _Task]) -> bool:
    """Return whether a process waits until its child of vfork runs a program: it is the child that may be stuck."""
    task, children = processes[pid], [child for child in processes.values() if child.parent == pid]
    return task.state == "D" and any(c.flags & _NO_PROGRAM_YET and c.memory == task.memory for c in children)


def _dumps(root: Path, pid: int) -> bool:
    """Return whether a process's core is being written, which takes long if it used much memory."""
    return "CoreDumping:\t1" in contents(root / "proc" / str(pid) / "status")


def _of_other_fuse(root: Path, thread: Path) -> bool:
    """Return whether a FUSE server of another container, which is not the job's, may owe a thread an answer.

    Source: https://docs.kernel.org/filesystems/fuse/fuse.html (/sys/fs/fuse/connections); only root may read it.
    """
    others = _fuse(thread) - _fuse(root / "proc/self")
    return any(contents(root / "sys/fs/fuse/connections" / device / "waiting") != "0" for device in others)


def _fuse(thread: Path) -> set[str]:
    """Return the numbers of the FUSE connections that a thread sees: the minor numbers of the file systems.

    The main thread of a killed process sees none any more, while others are still blocked.
    """
    try:
        lines = (thread / "mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    mounts = (line.partition(" - ") for line in lines)
    return {mount.split()[2].partition(":")[2] for mount, _, kind in mounts if kind.startswith(_FUSE)}


def _settings(root: Path) -> dict[str, str]:
    """Return the settings that exist here; of a setting of each CPU, all its values."""
    found = {name: value[:64] for name, file in _SETTINGS.items() if (value := contents(root / file))}
    values: dict[str, set[str]] = {}
    for folder in (root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*"):
        for name in _EACH_CPU:
            if value := contents(folder / name):
                values.setdefault(name, set()).add(value[:64])
    return found | {name: ", ".join(sorted(chosen)) for name, chosen in sorted(values.items()) if chosen}


def _throttled(root: Path) -> float | None:
    """Return how long the hottest CPU was slowed down by heat since the boot.

    Source: https://docs.kernel.org/admin-guide/abi-testing.html (thermal_throttle/package_throttle_total_time_ms)
    """
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_total_time_ms")
    return max((ms / 1000 for file in files if (ms := integer(file)) is not None), default=None)


def _removes_ipc(root: Path, uid: int) -> bool:
    """Return whether logind removes this user's shared memory when the user logs out.

    The default is compiled in; the main configuration file shows it in a comment. Of main files, and of drop-ins with
    the same name, only the one in the last folder is read; the drop-ins follow in the order of their names.

    Source: https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html, systemd.syntax.html beside it
    """
    if not (root / "run/systemd/users").is_dir() or not _FIRST_USER <= uid < _NOBODY:
        return False
    folders = [root / top / "systemd" for top in ("usr/lib", "usr/local/lib", "run", "etc")]
    main_files = [file for folder in folders if os.access(file := folder / "logind.conf", os.R_OK)]
    drop_ins = {file.name: file for folder in folders for file in sorted((folder / "logind.conf.d").glob("*.conf"))}
    shown = [value for file in main_files for used, value in _remove_ipc(file) if not used]
    chosen = [
        value
        for file in (*main_files[-1:], *(drop_ins[name] for name in sorted(drop_ins)))
        for used, value in _remove_ipc(file)
        if used
    ]
    return [*shown[:1], *chosen][-1:] == ["yes"]


def _remove_ipc(file: Path) -> list[tuple[bool, str]]:
    """Return a file's values of RemoveIPC in order, yes or no, and whether they are in use or in a comment."""
    found: list[tuple[bool, str]] = []
    section = ""
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return found
    for line in map(str.strip, lines):
        section = line if line.startswith("[") else section
        setting = _REMOVE_IPC.fullmatch(line)
        value = _BOOLEANS.get(setting[2].lower(), "") if setting else ""
        if setting and value and (setting[1] or section == "[Login]"):
            found.append((not setting[1], value))
    return found
