"""The likely cause of a process's death, by its signal and the state of its node."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.quantities import size
from distcheck.rules.wording import brief, free_space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.facts.rank import Death, RankFacts
    from distcheck.rules.finding import Owner, Scope

_MIB = 1 << 20
_SMALL_SHM_BYTES = 64 * _MIB
"""The default of Docker and Kubernetes."""
_SIGNAL = re.compile(r"SIG[A-Z0-9]+|signal \d+")
_CODE = re.compile(r"exit(?:ed with)? code (\d+)")
_SHELLS_SIGNAL = 128
_CALL = re.compile(r'^  File "([^"\n]+)", line (\d+) in (\S+)$', re.MULTILINE)
"""The innermost Python call, as faulthandler writes it at a fatal signal."""
_CRASH = re.compile(r'Fatal Python error|  File "')
_WATCHDOG = re.compile(r"watchdog", re.IGNORECASE)
_ERROR_WORDS = re.compile(r"error|terminate|assert|abort|what\(\)|invalid|corrupt|fatal|fail", re.IGNORECASE)


class DeathCause(NamedTuple):
    """The likely cause of a process's death, and the fix."""

    owner: Owner
    text: str
    """What to do."""
    commands: tuple[str, ...] = ()
    seen: str = ""
    """What the node showed, for the message; empty where it showed no sign of the cause."""
    scope: Scope = "node"


_BY_SIGNAL: Mapping[str, DeathCause] = {
    "SIGKILL": DeathCause(
        "user",
        "Most often the memory limit of the job's cgroup or the kernel's OOM killer: request more memory.",
        ("dmesg -T | grep -iE 'out of memory|killed process'", "cat /sys/fs/cgroup/memory.events"),
    ),
    "SIGBUS": DeathCause(
        "user",
        "Most often /dev/shm is full or too small for NCCL's and torch's segments: make it larger.",
        ("df -h /dev/shm", "# add to docker run: --shm-size=8g"),
    ),
    "SIGSEGV": DeathCause(
        "unknown",
        "A native library crashed; compare driver, NCCL and its plugins with the other nodes.",
        ("NCCL_NET_PLUGIN=none distcheck bandwidth", "dmesg -T | grep -i segfault"),
    ),
    "SIGABRT": DeathCause(
        "unknown",
        "torch's watchdog or a failed assertion aborted it; its log shows which.",
        ("NCCL_DEBUG=INFO distcheck bandwidth -v",),
    ),
    "SIGTERM": DeathCause("unknown", "The scheduler or a person ended it; check for a time limit or a preemption."),
    "SIGILL": DeathCause(
        "admin",
        "torch or a library was built for a different processor than this node's.",
        ("lscpu | grep -i 'model name'",),
    ),
    "SIGFPE": DeathCause(
        "unknown", "A native library divided by zero; its last output shows where.", ("distcheck gate -v",)
    ),
    "SIGSYS": DeathCause(
        "admin",
        "A seccomp filter forbids a system call that torch or NCCL makes: allow it in the container's profile.",
        ("# add to docker run: --security-opt seccomp=unconfined",),
    ),
    "SIGXCPU": DeathCause("user", "It exceeded its CPU time limit: raise the limit.", ("ulimit -t unlimited",)),
    "SIGXFSZ": DeathCause("user", "It exceeded its file size limit: raise the limit.", ("ulimit -f unlimited",)),
}
_UNKNOWN = DeathCause("unknown", "Its last output is in the log of the ranks; run it again with -v.")


def signal_of(detail: str) -> str:
    """Return the signal named in "was ended by SIGBUS" or implied by "exited with code 135"."""
    named = _SIGNAL.search(detail)
    if named:
        return named[0]
    code = _CODE.search(detail)
    number = int(code[1]) - _SHELLS_SIGNAL if code else 0
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def cause_of_death(rank: RankFacts) -> DeathCause:
    """Return the likely cause of a rank's death."""
    if rank.run is None:
        return _UNKNOWN
    name, death = signal_of(rank.run.detail), rank.run.death
    cause = _BY_SIGNAL.get(name, _UNKNOWN)
    if death is None:
        return cause
    if name == "SIGKILL":
        return _killed(rank, death, cause)
    if name == "SIGBUS":
        return _bus_error(rank, death, cause)
    if name == "SIGABRT" and _WATCHDOG.search(death.said):
        return DeathCause(
            "unknown",
            "It waited in a collective until torch's watchdog aborted it: check the ranks that it waited for.",
            ("distcheck isolate", "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 NCCL_DEBUG=INFO distcheck bandwidth -v"),
            seen="torch's watchdog aborted it",
        )
    output, call = last_words(death), _CALL.search(death.said)
    seen = [f"its output: '{output}'"] if output else []
    if call:
        seen.append(f"it was in {call[3]} ({'/'.join(call[1].split('/')[-2:])}:{call[2]})")
    return cause._replace(seen="; ".join(seen))


def last_words(death: Death) -> str:
    """Return the first line of the last output that looks like an error, '' if none does."""
    lines = [line.strip() for line in death.said.splitlines() if _ERROR_WORDS.search(line) and not _CRASH.match(line)]
    return brief(lines[0], 120) if lines else ""


def _killed(rank: RankFacts, death: Death, cause: DeathCause) -> DeathCause:
    if isinstance(death.oom_kills, Missing):
        return cause
    if death.oom_kills and death.memory_limit_bytes is not None:
        limit = death.memory_limit_bytes
        return DeathCause(
            "user",
            f"Give the job more memory than {size(limit)} on each node.",
            more_memory(rank, limit),
            seen=f"the kernel OOM-killed {_processes(death.oom_kills)} at its cgroup's memory limit of {size(limit)}",
            scope="rank",
        )
    if death.oom_kills:
        return DeathCause(
            "unknown",
            "The node, or an outer cgroup of the job's, ran out of memory: find what uses it, and request memory.",
            ("free -h", "ps -eo rss,pid,user,cmd --sort=-rss | head", "dmesg -T | grep -i 'out of memory'"),
            seen=f"the kernel OOM-killed {_processes(death.oom_kills)}; its cgroup limit was not reached",
        )
    under_slurm = "SLURM_JOB_ID" in rank.environment
    return DeathCause(
        "unknown",
        "A person, the scheduler or an agent on the node sent the signal; the sender is not known.",
        (
            *(("sacct -j $SLURM_JOB_ID --format=JobID,State,ExitCode,MaxRSS,ReqMem",) if under_slurm else ()),
            "dmesg -T | grep -iE 'out of memory|killed process'",
            "journalctl -k -n 50",
        ),
        seen="the kernel did not OOM-kill any process in its cgroup",
    )


def more_memory(rank: RankFacts, limit: int) -> tuple[str, ...]:
    """Return the commands that request twice the limit, by what set it."""
    twice = max(1, -(-2 * limit // _MIB))
    if "SLURM_JOB_ID" in rank.environment:
        return (
            f"#SBATCH --mem={twice}M",
            f"# add to srun: --mem={twice}M",
            "scontrol show job $SLURM_JOB_ID | grep -i mem",
        )
    if "KUBERNETES_SERVICE_HOST" in rank.environment:
        return (f"# in the container: resources: {{limits: {{memory: {twice}Mi}}}}", "kubectl describe pod $HOSTNAME")
    return (
        f"# add to docker run: --memory={twice}m",
        f"# put in front of the command: systemd-run --user --scope -p MemoryMax={twice}M",
    )


def _bus_error(rank: RankFacts, death: Death, cause: DeathCause) -> DeathCause:
    room = death.shm
    if room is None:
        return cause
    if isinstance(room, Missing):
        return cause._replace(seen=room.reason)
    seen = f"its /dev/shm has {free_space(room)}"
    if room.total_bytes <= _SMALL_SHM_BYTES:
        text = "Make /dev/shm larger: NCCL, torch and its data loaders use it for shared memory."
        return DeathCause("user", text, _larger_shm(rank), seen=seen)
    if room.free_bytes <= _SMALL_SHM_BYTES:
        text = "Remove leftover files of earlier jobs from /dev/shm, or make it larger."
        return DeathCause("user", text, ("ls -la /dev/shm", *_larger_shm(rank)), seen=seen)
    return DeathCause(
        "unknown",
        "Shared memory is not the cause: a mapped file was truncated, its disk is full, or node memory is faulty.",
        ("dmesg -T | grep -iE 'hwpoison|memory failure|mce|i/o error'", "df -h /tmp ."),
        seen=seen,
    )


def _larger_shm(rank: RankFacts) -> tuple[str, ...]:
    if "KUBERNETES_SERVICE_HOST" in rank.environment:
        return ("volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]  # mounted at /dev/shm",)
    return ("# add to docker run: --shm-size=8g", "sudo mount -o remount,size=50% /dev/shm")


def _processes(count: int) -> str:
    return "it" if count == 1 else f"{count} processes"


def evidence_of_death(rank: RankFacts) -> dict[str, str | int]:
    """Return what the node of a dead rank showed; empty where it was not inspected."""
    death = rank.run.death if rank.run else None
    if death is None:
        return {}
    evidence: dict[str, str | int] = {}
    if death.memory_limit_bytes is not None:
        evidence |= {"memory_limit_bytes": death.memory_limit_bytes, "cgroup": death.memory_cgroup}
    if death.said:
        evidence["last words"] = death.said
    return evidence
