"""Collect who a process is, who started it, and its state in the kernel."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from distcheck.facts.base import Missing
from distcheck.facts.placement import Variables
from distcheck.facts.ranges import fold
from distcheck.facts.rank import Agent
from distcheck.probe import environment
from distcheck.selection.placement import RANK_VARIABLES

_LONGEST, _MOST_WORDS = 300, 40
_AGENTS: tuple[tuple[re.Pattern[str], Literal["torchrun", "launch", "accelerate"]], ...] = (
    (re.compile(r"(^|/)torchrun$|(^|/)torch[./]distributed[./]run(\.py)?$"), "torchrun"),
    (re.compile(r"(^|/)torch[./]distributed[./]launch(\.py)?$"), "launch"),
    (re.compile(r"(^|/)accelerate(-launch)?$|(^|/)accelerate[./]commands[./]launch(\.py)?$"), "accelerate"),
)
# slurm/uid_1000/job_7/step_0 (cgroup v1), system.slice/slurmstepd.scope/job_7/step_0/user/task_0 (v2)
_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_BATCH_JOBS = ("PBS_JOBID", "LSB_JOBID")
# docker-ID.scope, /docker/ID, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, kubepods/…/ID
_CONTAINER = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
# At most an interpreter and its options precede the program: python -u -X dev -m torch.distributed.run
_BEFORE_PROGRAM = 6
_CAP_IPC_LOCK = 1 << 14  # linux/capability.h
_TERMINALS = {4: "tty", 136: "pts/"}
"""By major number (linux/Documentation/admin-guide/devices.txt)."""
_ALL_USERS = ["0", "0", "4294967295"]
"""The uid_map of the initial user namespace."""


def command_of(pid: int) -> tuple[str, ...]:
    """Return a process's command line, redacted and cut; empty if it is gone or hidden."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    words = [part.decode("utf-8", "replace") for part in raw.split(b"\0")[:-1][:_MOST_WORDS]]
    return tuple(word[:_LONGEST] for word in environment.redacted(words))


def command_or_name(pid: int) -> str:
    """Return a process's command line, its name if it has none (a kernel thread, a zombie), '?' if it is gone."""
    return " ".join(command_of(pid)) or _text(f"/proc/{pid}/comm").strip() or "?"


def parent_of(pid: int) -> int:
    """Return the parent's pid, 0 if the process is gone or hidden."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def state_of(pid: int) -> str:
    """Return the kernel's state letter of a process (R, S, D, T, t, Z, …), '' if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def started(pid: int) -> str:
    """Return when a process started, in clock ticks since the boot; '' if it is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def terminal_of(pid: int) -> str:
    """Return the terminal that controls a process, as `ps` names it (pts/3), '' without one."""
    fields = _stat(pid)
    device = int(fields[4]) if fields else 0
    kind = _TERMINALS.get(device >> 8 & 0xFFF)
    return f"{kind}{device & 0xFF | device >> 12 & 0xFFF00}" if kind else ""


def waits_in(pid: int) -> str:
    """Return the kernel function in which a process sleeps, '' if it runs or that is hidden."""
    name = _text(f"/proc/{pid}/wchan").strip()
    return "" if name == "0" else name[:_LONGEST]


def ancestors(pid: int | None = None) -> tuple[str, ...]:
    """Return the command lines of the processes that started this one, nearest first."""
    found: list[str] = []
    pid = parent_of(pid or os.getpid())
    while pid > 0 and len(found) < 16:
        found.append(command_or_name(pid))
        pid = parent_of(pid)
    return tuple(found)


def allowed_cpus() -> int:
    """Return the number of CPUs on which this process and its forks may run."""
    return len(os.sched_getaffinity(0))


def allowed_cpu_list() -> str:
    """Return the CPUs on which this process may run, folded: 0-15,32-47."""
    return fold(os.sched_getaffinity(0))


def agent(environ: Mapping[str, str], pid: int | None = None) -> Agent | None:
    """Return the nearest torchelastic agent that started a process, None without one.

    Programs that run their own agent, as Lightning and Ray do, are not recognised.
    """
    if not environ.get("TORCHELASTIC_RUN_ID"):
        return None
    pid = parent_of(pid or os.getpid())
    for _ in range(16):
        if pid <= 0:
            break
        words = command_of(pid)
        for position, word in enumerate(words[:_BEFORE_PROGRAM]):
            program = next((name for pattern, name in _AGENTS if pattern.search(word)), None)
            if program:
                return Agent(program=program, pid=pid, arguments=words[position + 1 :], exported=_exported(pid))
        pid = parent_of(pid)
    return None


def variables_of(pid: int) -> dict[str, str] | Missing:
    """Return the variables with which a process was started, whatever it or its shell exports later."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        return Missing(reason=f"cannot read the environment of process {pid}: {error.strerror}")
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def _exported(pid: int) -> Variables | Missing:
    began = variables_of(pid)
    if isinstance(began, Missing):
        return began
    return Variables(environment.collect({name: began[name] for name in began if name in RANK_VARIABLES}))


def given_devices(environ: Mapping[str, str], pid: int | None = None) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which the first process of a PBS or LSF job began; '' if unknown."""
    job = next((name for name in _BATCH_JOBS if environ.get(name)), "")
    found, pid = "", parent_of(pid or os.getpid()) if job else 0
    while pid > 0 and not isinstance(began := variables_of(pid), Missing) and began.get(job) == environ[job]:
        found, pid = began.get("CUDA_VISIBLE_DEVICES", "")[:_LONGEST], parent_of(pid)
    return found


def slurm_job_of(pid: int) -> str:
    """Return the id of a process's Slurm job, by its cgroup or its variables; '' for none."""
    found, began = _JOB.search(_text(f"/proc/{pid}/cgroup")), variables_of(pid)
    job = found[1] if found else "" if isinstance(began, Missing) else began.get("SLURM_JOB_ID", "")
    return job if job.isdecimal() else ""


def container_of(pid: int) -> str:
    """Return the start of the id of a process's container, by its cgroup; '' if unknown."""
    found = _CONTAINER.search(_text(f"/proc/{pid}/cgroup"))
    return found[1][:12] if found else ""


def shm_device(environ: Mapping[str, str], *, gpus: bool) -> int | Missing | None:
    """Return the device of /dev/shm, which containers of one host may share; None if the job cannot use GPUs."""
    if "KUBERNETES_SERVICE_HOST" not in environ and not gpus:
        return None
    try:
        return Path("/dev/shm").stat().st_dev  # noqa: S108 nothing is written there
    except OSError as error:
        return Missing(reason=f"no /dev/shm: {error.strerror}")


def locked_memory(root: Path = Path("/")) -> int:
    """Return how many bytes this process may lock, -1 without a limit.

    Source: linux/drivers/infiniband/core/umem.c: CAP_IPC_LOCK of the initial user namespace lifts RLIMIT_MEMLOCK.
    """
    initial = _text(root / "proc/self/uid_map").split() == _ALL_USERS
    lifted = initial and mask_of("self", "CapEff", root) & _CAP_IPC_LOCK
    return -1 if lifted else resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]  # -1 is RLIM_INFINITY


def mask_of(pid: int | str, name: str, root: Path = Path("/")) -> int:
    """Return a process's mask of capabilities (CapEff) or of signals (SigCgt); 0 if it is gone or hidden."""
    found = re.search(rf"^{name}:\s*([0-9a-f]+)", _text(root / f"proc/{pid}/status"), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name, which may hold blanks."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _text(path: str | Path) -> str:
    """Return a file of /proc, '' if the process is gone or hidden; names in it may be cut inside a letter."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
