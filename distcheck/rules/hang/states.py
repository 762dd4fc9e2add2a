"""What each rank does, by two or more samples: whether it makes progress, waits in communication, or is blocked.

A waiter in a collective has no context switch at all (measured with Gloo), so one is progress there. Elsewhere progress
is CPU time with the time in the queue for a CPU, other frames, bytes read and written, and the same of the processes
below it. A rank that only sleeps or polls makes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple

from distcheck.facts.hang import Moment, RankProcess, SystemCall
from distcheck.rules.hang.gpus import activity, broken
from distcheck.rules.hang.places import BACKWARD, GPU, INIT, STORE, WORK, StackPlace, place_of, users_frames

Kind = Literal[
    "gone", "stopped", "gpu", "disk", "blocked", "lock", "polls", "sleeps", "hidden", "unknown", "spins", "busy",
    "idle", "waits",
]  # fmt: skip
"""The likeliest cause first. gone: ended; gpu: its GPU is lost or had a fatal error; disk: in D state; lock: in a lock
of the program; hidden: sleeps, and it is unknown whether in communication; unknown: nothing may be read; spins:
computes at one line, or waits for the GPU there; idle: a server without a request, or an event loop; waits: in
communication."""

_BUSY, _HARDLY, _QUEUED = 0.05, 0.02, 0.5
"""Shares of the time: a rank computes with the first, or with the second and the third with its time in the queue."""
_TRAFFIC = 0.03
"""The share of a CPU with which Gloo's loop moves data; it takes 0.3 % to wake up each 10 ms without any."""
_BYTES_PER_SECOND, _IN_A_POLL = 2048, 16
"""What a log takes is less; a rank that polls may read that many times as much (rank 0 polls its store at 4 kB/s)."""
_WOKEN_PER_SECOND = 20
"""What a thread that polls is switched is less; one that receives data from the network shows nothing else."""
_FUTEX = re.compile(r"^futex_|^do_futex")
_POLLS = re.compile(r"^(poll|do_select|do_sys_poll|ep_poll|do_epoll|epoll)")
_NATIVE = re.compile(r"^(libtorch|libc10|libnccl|libgloo|librccl|libuv)")
_CUDA = re.compile(r"^(libcuda|libcudart|libhsa|libamdhip)")
_COMPUTES = re.compile(r"^(libgomp|libiomp|libomp)")
_WAITING = re.compile(r"c10d::\S*[Ww]ait\S*|\S*[a-z]Synchronize\b|\bc10::cuda::stream_synchronize")
"""Functions of --native."""
_SLEEPING_CALLS = frozenset({"nanosleep", "clock_nanosleep"})
_SOCKET_CALLS = frozenset({"recvfrom", "recvmsg", "sendto", "sendmsg", "connect"})
_POLLING_CALLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
_WAITING_CALLS = _SLEEPING_CALLS | _SOCKET_CALLS | _POLLING_CALLS | {"futex", "sched_yield"}
"""In which torch's own code may wait."""
_UNREAD = SystemCall("")


class RankState(NamedTuple):
    """What a rank does."""

    process: RankProcess
    kind: Kind
    moves: bool
    """Whether it made progress."""
    place: StackPlace
    operation: str
    """The communication that it waits in; empty if none."""
    seconds: float
    """For how long it was looked at."""
    busy: float
    """The share of a CPU that its main thread took or wanted."""

    @property
    def last(self) -> Moment:
        """Its latest sample."""
        return self.process.moments[-1]

    @property
    def call(self) -> SystemCall | None:
        """The system call that its main thread is in."""
        return self.last.call

    @property
    def serves(self) -> bool:
        """Whether it is a server without a request; of an event loop alone nobody knows what it waits for."""
        return self.kind == "idle" and (self.place.serves or _accepts(self.last))

    @property
    def wrote(self) -> bool:
        """Whether it read or wrote anything: a collective of Gloo writes some hundred bytes, a sleep none."""
        return bool(_grown(self.process, "moved_bytes"))


def ranks_of(states: Iterable[RankState]) -> tuple[int, ...]:
    """Return the numbers of ranks, sorted, without those whose number is unknown."""
    return tuple(sorted({s.process.rank for s in states if s.process.rank is not None}))


def nodes_of(states: Iterable[RankState]) -> tuple[str, ...]:
    """Return the nodes of ranks."""
    return tuple(dict.fromkeys(s.process.node for s in states))


def state_of(process: RankProcess) -> RankState:
    """Return what a rank does."""
    place = place_of(process.moments[-1])
    seconds = max(_grown(process, "age_seconds"), 0.001)
    operation = place.operation or _native(process, place)
    busy = _share(process, seconds)
    kind = _kind(process, place, operation, busy)
    if kind == "waits":
        operation = operation or GPU
    moves = not place.idles and _moves(kind, operation, busy, process, seconds)
    if broken(process) and not moves and kind not in {"gone", "stopped"}:
        kind = "gpu"
    return RankState(process, kind, moves, place, operation if kind in {"waits", "busy"} else "", seconds, busy)


def _grown(process: RankProcess, name: str) -> Any:
    """Return by how much a number grew between the first sample and the last; 0 if it may not be read."""
    before, after = (getattr(m, name) for m in (process.moments[0], process.moments[-1]))
    return 0 if before is None or after is None else after - before


def _share(process: RankProcess, seconds: float) -> float:
    """Return which share of the time the main thread computed; 0 if it only wakes up now and then."""
    run, queued = _grown(process, "run_seconds"), _grown(process, "queued_seconds")
    if run >= _BUSY * seconds or (run >= _HARDLY * seconds and run + queued >= _QUEUED * seconds):
        return float(min(1.0, (run + queued) / seconds))
    return 0.0


def _native(process: RankProcess, place: StackPlace) -> str:
    """Return what a thread waits for in torch's own code under a line of the program: Work.wait, the store, the GPU."""
    functions = " ".join(frame.function for frame in process.native) if isinstance(process.native, tuple) else ""
    if found := _WAITING.search(functions):
        return WORK if "c10d" in found[0] else GPU
    call = process.moments[-1].call or _UNREAD
    if call.name not in _WAITING_CALLS or place.thread:
        return ""
    inner = list(takewhile(lambda name: "python" not in name, call.libraries))
    if any(map(_COMPUTES.match, inner)):
        return ""
    if any(map(_CUDA.match, inner)):
        return GPU
    if any(map(_NATIVE.match, inner)):
        return WORK if call.name in {"futex", "sched_yield"} else STORE
    return ""


def _kind(process: RankProcess, place: StackPlace, operation: str, busy: float) -> Kind:
    moment = process.moments[-1]
    if moment.state in "ZXTt":
        return "gone" if moment.state in "ZX" else "stopped"
    if moment.state == process.moments[0].state == "D":
        return "disk"
    if place.idles:
        return "idle"
    if operation == GPU:
        return "waits"
    if busy and operation != INIT:
        works = not process.cuda or _works(process)
        return "busy" if works else "waits" if activity(process) == "waits" else "spins"
    if operation and (operation != BACKWARD or moment.state != "R"):
        return "waits"
    name = (moment.call or _UNREAD).name
    if _accepts(moment) or place.loops:
        return "idle"
    if moment.state == "R":
        return "polls"
    if _sleeps(moment):
        return "sleeps"
    if place.thread or place.ended:
        return "lock"
    if name == "futex" or _FUTEX.match(moment.waits_in):
        return "lock" if place.at and moment.call and moment.call.libraries else "hidden"
    if name in _POLLING_CALLS or _POLLS.match(moment.waits_in):
        return "polls" if place.at or moment.call else "hidden"
    return "blocked" if name not in {"", "running"} or moment.waits_in else "unknown"


def _moves(kind: Kind, operation: str, busy: float, process: RankProcess, seconds: float) -> bool:
    """Return whether a rank made progress between its samples."""
    if kind in {"gone", "stopped", "unknown"}:
        return False
    if _changed(process, busy):
        return True
    if kind == "spins":
        return False
    others, switched = _grown(process, "others_seconds"), _grown(process, "switches") > 0
    if operation == BACKWARD and others >= _HARDLY * seconds:
        return True  # torch's threads launch the kernels
    if kind == "waits":
        polls = operation in {INIT, GPU} or _sleeps(process.moments[-1])
        sends = _grown(process, "traffic_seconds") >= _TRAFFIC * seconds
        return (switched and not polls) or sends or _grown(process, "traffic_bytes") > 0
    moved = max(_grown(process, "moved_bytes"), _grown(process, "children_bytes"))
    woken = max(_grown(process, "others_switches"), _grown(process, "children_switches"))
    return (
        bool(busy)
        or max(others, _grown(process, "children_seconds")) >= _BUSY * seconds
        or moved >= _BYTES_PER_SECOND * seconds * (_IN_A_POLL if kind in {"sleeps", "polls"} else 1)
        or woken >= _WOKEN_PER_SECOND * seconds
        or (switched and _transfers(kind, process.moments[-1]))
    )


def _works(process: RankProcess) -> bool:
    """Return whether more than the main thread's CPU time changed: a wait for the GPU takes a whole CPU."""
    ways = {_way(m, exact=True) for m in process.moments if isinstance(m.threads, tuple)}
    return len(ways) != 1 or _grown(process, "others_seconds") > _HARDLY or bool(_grown(process, "moved_bytes"))


def _transfers(kind: Kind, moment: Moment) -> bool:
    """Return whether a rank is in a call that data ends, so that each context switch is data that came."""
    if kind == "hidden":
        return moment.waits_in.startswith("futex")  # where Gloo's waiters are
    call = moment.call or _UNREAD
    polls_peer = call.name in _POLLING_CALLS and call.remote_port is not None
    return kind in {"disk", "blocked"} or polls_peer or call.name in _SOCKET_CALLS


def _accepts(moment: Moment) -> bool:
    return moment.waits_in == "inet_csk_accept" or (moment.call or _UNREAD).name in {"accept", "accept4"}


def _sleeps(moment: Moment) -> bool:
    return "nanosleep" in moment.waits_in or (moment.call or _UNREAD).name in _SLEEPING_CALLS


def _changed(process: RankProcess, busy: float) -> bool:
    """Return whether the program went on between two samples.

    A loop that polls changes between its lines; that a rank which hardly computes is at another line of the same
    function is no progress.
    """
    ways = (_way(moment, exact=bool(busy)) for moment in process.moments if isinstance(moment.threads, tuple))
    return any(before != after for before, after in pairwise(ways))


def _way(moment: Moment, *, exact: bool) -> tuple[object, ...]:
    place = place_of(moment)
    frames = users_frames(moment, place.thread)
    return (place.operation, *((f.file, f.function, f.line if exact or n else 0) for n, f in enumerate(frames)))
