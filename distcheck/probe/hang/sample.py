"""One sample of a process from /proc: state, where it sleeps, CPU time, context switches, bytes read and written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from distcheck.facts.hang import Moment
from distcheck.probe.hang.calls import system_call
from distcheck.probe.hang.processes import ProcessTable
from distcheck.probe.kernel_files import contents

_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_IO = re.compile(r"^[rw]char:\s*(\d+)", re.MULTILINE)
_OWN = (
    *("pt_tcpstore", "pt_nccl", "NCCL", "nccl", "cuda", "pt_elastic", "gloo_tcp_loop", "pt_gloo", "nvidia"),
    *("client.poll", "server.poll", "nexting_thread", "timer_manager", "grpc", "event_engine", "task_event_buff"),
    "worker.io",
)
"""How the names begin of threads that communicate or wait for it, whatever the program does; also those of Ray."""
_TRAFFIC = "gloo_tcp_loop"
_GLOO = (_TRAFFIC, "pt_gloo")
"""Those that write what Gloo sends."""
_MOST_CHILDREN = 256


class _Spent(NamedTuple):
    run: float
    queued: float


def moment(table: ProcessTable, pid: int, below: tuple[int, ...]) -> Moment:
    """Return a sample of a process and of those below it, without stacks."""
    base = f"/proc/{pid}"
    stat = contents(Path(f"{base}/task/{pid}/stat")).rpartition(")")[2].split()
    if not stat or stat[0] in "ZX":
        return Moment(table.age(pid), stat[0] if stat else "X")
    own = spent(f"{base}/task/{pid}")
    others, woken, traffic, sent = _threads(pid)
    ended = (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK") if len(stat) > 14 else 0.0
    children = [busy_seconds(child) for child in below[:_MOST_CHILDREN]]
    io = [bytes_of(f"/proc/{child}") for child in below[:_MOST_CHILDREN]]
    return Moment(
        age_seconds=table.age(pid),
        state=stat[0],
        waits_in=kernel_function(pid),
        call=system_call(pid),
        run_seconds=own.run,
        queued_seconds=own.queued,
        switches=switches_of(f"{base}/task/{pid}"),
        others_seconds=others,
        others_switches=woken,
        traffic_seconds=traffic,
        traffic_bytes=sent,
        moved_bytes=bytes_of(base),
        children_seconds=sum(children) + ended,
        children_bytes=sum(found for found in io if found is not None),
        children_switches=sum(switches_of(f"/proc/{child}/task/{child}") for child in below[:_MOST_CHILDREN]),
    )


def kernel_function(pid: int) -> str:
    """Return in which function of the kernel a process sleeps; empty if it runs or may not be read."""
    return contents(Path(f"/proc/{pid}/wchan")).removeprefix("0")


def switches_of(task: str) -> int:
    """Return how often a thread was switched, by itself or by others."""
    return sum(map(int, _SWITCHES.findall(contents(Path(f"{task}/status")))))


def spent(task: str) -> _Spent:
    """Return how long a thread ran and waited for a CPU; a computing thread of a full machine mostly waits for one."""
    fields = contents(Path(f"{task}/schedstat")).split()
    return _Spent(int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) > 1 else _Spent(0.0, 0.0)


def busy_seconds(pid: int) -> float:
    """Return how long all threads of a process ran and waited for a CPU."""
    return sum(sum(spent(task)) for _, task in _tasks(pid))


def bytes_of(base: str) -> int | None:
    """Return how many bytes a process or thread has read and written, None if that may not be read."""
    found = _IO.findall(contents(Path(f"{base}/io")))
    return sum(map(int, found)) if found else None


def _tasks(pid: int) -> list[tuple[int, str]]:
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    return [(int(name), f"/proc/{pid}/task/{name}") for name in names]


def _threads(pid: int) -> tuple[float, int, float, int]:
    """Return how busy the threads beside the main one were, their switches, and how busy Gloo's were and wrote."""
    others, woken, traffic, sent = 0.0, 0, 0.0, 0
    for number, task in _tasks(pid):
        if number == pid:
            continue
        name = contents(Path(f"{task}/comm"))
        if name.startswith(_GLOO):
            sent += bytes_of(task) or 0
        if name.startswith(_TRAFFIC):
            traffic += spent(task).run
        elif not name.startswith(_OWN):
            others += sum(spent(task))
            woken += switches_of(task)
    return others, woken, traffic, sent
