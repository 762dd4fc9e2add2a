"""What each rank does, by two or more samples: whether it makes progress, waits in communication, or is blocked.

A waiter in a collective has no context switch at all (measured with Gloo), so one is progress there. Elsewhere progress
is CPU time with the time in the queue for a CPU, other frames, bytes read and written, and the same of the processes
below it. A rank that only sleeps or polls makes none.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.rules.hang.gpus import activity, broken
from distcheck.rules.hang.places import BACKWARD, GPU, INIT, STORE, WORK, StackPlace, place_of, users_frames

if TYPE_CHECKING:
    from distcheck.facts.hang import Moment, RankProcess, SystemCall

Kind = Literal[
    "gone",
    "stopped",
    "gpu",
    "disk",
    "blocked",
    "lock",
    "polls",
    "sleeps",
    "hidden",
    "unknown",
    "spins",
    "busy",
    "idle",
    "waits",
]
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
_SLEEPS = re.compile(r"nanosleep")
_NATIVE = re.compile(r"^(libtorch|libc10|libnccl|libgloo|librccl|libuv)")
_CUDA = re.compile(r"^(libcuda|libcudart|libhsa|libamdhip)")
_WAITING = re.compile(r"c10d::\S*[Ww]ait\S*|\S*[a-z]Synchronize\b|\bc10::cuda::stream_synchronize")
"""Functions of --native."""
_COMPUTES = re.compile(r"^(libgomp|libiomp|libomp)")
_COMMUNICATES = frozenset(
    [
        "futex",
        "poll",
        "ppoll",
        "select",
        "pselect6",
        "epoll_wait",
        "epoll_pwait",
        "recvfrom",
        "recvmsg",
        "sendto",
        "sendmsg",
        "connect",
        "sched_yield",
    ]
)
_SOCKET_CALLS = frozenset(["recvfrom", "recvmsg", "sendto", "sendmsg", "connect"])
_SLEEPING_CALLS = frozenset({"nanosleep", "clock_nanosleep"})
_POLLING_CALLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})


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
    letter: str
    """The kernel's state."""
    waits_in: str
    busy: float
    """The share of a CPU that its main thread took or wanted."""
    holds_gil: bool

    @property
    def serves(self) -> bool:
        """Whether it is a server without a request; of an event loop alone nobody knows what it waits for."""
        return self.kind == "idle" and (self.place.serves or _accepts(self.process.moments[-1]))

    @property
    def wrote(self) -> bool:
        """Whether it read or wrote anything: a collective of Gloo writes some hundred bytes, a sleep none."""
        first, last = self.process.moments[0], self.process.moments[-1]
        return _grown(first.moved_bytes, last.moved_bytes) > 0

    @property
    def call(self) -> SystemCall | None:
        """The system call that its main thread is in."""
        return self.process.moments[-1].call


def state_of(process: RankProcess) -> RankState:
    """Return what a rank does."""
    first, last = process.moments[0], process.moments[-1]
    place = place_of(last) or StackPlace("", "", "")
    seconds = max(last.age_seconds - first.age_seconds, 0.001)
    operation = place.operation or _native(process, place)
    busy = _share(first, last, seconds)
    kind = _kind(process, last, place, operation, busy)
    if kind == "waits":
        operation = operation or GPU
    moves = not place.idles and _moves(kind, operation, busy, process, seconds)
    if broken(process) and not moves and kind not in {"gone", "stopped"}:
        kind = "gpu"
    threads = last.threads if isinstance(last.threads, tuple) else ()
    return RankState(
        process=process,
        kind=kind,
        moves=moves,
        place=place,
        operation=operation if kind in {"waits", "busy"} else "",
        seconds=seconds,
        letter=last.state,
        waits_in=last.waits_in,
        busy=busy,
        holds_gil=any(t.gil and t.main for t in threads),
    )


def _share(first: Moment, last: Moment, seconds: float) -> float:
    """Return which share of the time the main thread computed; 0 if it only wakes up now and then."""
    run, queued = last.run_seconds - first.run_seconds, last.queued_seconds - first.queued_seconds
    if run >= _BUSY * seconds or (run >= _HARDLY * seconds and run + queued >= _QUEUED * seconds):
        return min(1.0, (run + queued) / seconds)
    return 0.0


def _native(process: RankProcess, place: StackPlace) -> str:
    """Return what a thread waits for in torch's own code under a line of the program: Work.wait, the store, the GPU."""
    functions = " ".join(frame.function for frame in process.native) if isinstance(process.native, tuple) else ""
    if found := _WAITING.search(functions):
        return WORK if "c10d" in found[0] else GPU
    call = process.moments[-1].call
    if call is None or call.name not in _COMMUNICATES | _SLEEPING_CALLS or place.thread:
        return ""
    outside = next((n for n, name in enumerate(call.libraries) if "python" in name), len(call.libraries))
    inner = call.libraries[:outside]
    if any(_COMPUTES.match(name) for name in inner) or not inner:
        return ""
    if any(_CUDA.match(name) for name in inner):
        return GPU
    if any(_NATIVE.match(name) for name in inner):
        return WORK if call.name in {"futex", "sched_yield"} else STORE
    return ""


def _kind(process: RankProcess, moment: Moment, place: StackPlace, operation: str, busy: float) -> Kind:
    before = process.moments[0]
    if moment.state in "ZXTt":
        return "gone" if moment.state in "ZX" else "stopped"
    if moment.state == before.state == "D":
        return "disk"
    if place.idles:
        return "idle"
    if operation == GPU:
        return "waits"
    if busy and operation != INIT:
        return _spins(process) if process.cuda and not _works(process) else "busy"
    if operation and (operation != BACKWARD or moment.state != "R"):
        return "waits"
    name = moment.call.name if moment.call else ""
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


def _spins(process: RankProcess) -> Kind:
    return "waits" if activity(process) == "waits" else "spins"


def _moves(kind: Kind, operation: str, busy: float, process: RankProcess, seconds: float) -> bool:
    """Return whether a rank made progress between its samples."""
    first, last = process.moments[0], process.moments[-1]
    if kind in {"gone", "stopped", "unknown"}:
        return False
    if _changed(process, busy):
        return True
    switches = last.switches - first.switches
    if kind == "spins":
        return False
    if operation == BACKWARD and last.others_seconds - first.others_seconds >= _HARDLY * seconds:
        return True  # torch's threads launch the kernels
    if kind == "waits":
        polls = operation in {INIT, GPU} or _sleeps(last)
        sends = last.traffic_seconds - first.traffic_seconds >= _TRAFFIC * seconds
        return (switches > 0 and not polls) or sends or last.traffic_bytes > first.traffic_bytes
    spent = (
        last.others_seconds - first.others_seconds,
        last.children_seconds - first.children_seconds,
    )
    moved = (_grown(first.moved_bytes, last.moved_bytes), _grown(first.children_bytes, last.children_bytes))
    least = _BYTES_PER_SECOND * seconds * (_IN_A_POLL if kind in {"sleeps", "polls"} else 1)
    woken = (last.others_switches - first.others_switches, last.children_switches - first.children_switches)
    if busy or max(spent) >= _BUSY * seconds or max(moved) >= least or max(woken) >= _WOKEN_PER_SECOND * seconds:
        return True
    return switches > 0 and _transfers(kind, last)


def _works(process: RankProcess) -> bool:
    """Return whether more than the main thread's CPU time changed: a wait for the GPU takes a whole CPU."""
    first, last = process.moments[0], process.moments[-1]
    ways = {_way(m, exact=True) for m in process.moments if isinstance(m.threads, tuple)}
    return (
        len(ways) != 1 or last.others_seconds - first.others_seconds > _HARDLY or first.moved_bytes != last.moved_bytes
    )


def _transfers(kind: Kind, moment: Moment) -> bool:
    """Return whether a rank is in a call that data ends, so that each context switch is data that came."""
    call = moment.call
    if kind == "hidden":
        return moment.waits_in.startswith("futex")  # where Gloo's waiters are
    polls_peer = call is not None and call.name in _POLLING_CALLS and call.remote_port is not None
    return kind in {"disk", "blocked"} or polls_peer or (call is not None and call.name in _SOCKET_CALLS)


def _accepts(moment: Moment) -> bool:
    return moment.waits_in == "inet_csk_accept" or (
        moment.call is not None and moment.call.name in {"accept", "accept4"}
    )


def _sleeps(moment: Moment) -> bool:
    by_call = moment.call is not None and moment.call.name in _SLEEPING_CALLS
    return by_call or _SLEEPS.search(moment.waits_in) is not None


def _grown(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before


def _changed(process: RankProcess, busy: float) -> bool:
    """Return whether the program went on between two samples.

    A loop that polls changes between its lines; that a rank which hardly computes is at another line of the same
    function is no progress.
    """
    shown = [m for m in process.moments if isinstance(m.threads, tuple)]
    ways = [_way(moment, exact=bool(busy)) for moment in shown]
    return any(before != after for before, after in pairwise(ways))


def _way(moment: Moment, *, exact: bool) -> tuple[object, ...]:
    place = place_of(moment) or StackPlace("", "", "")
    frames = users_frames(moment, place.thread)
    return (place.operation, *((f.file, f.function, f.line if exact or n else 0) for n, f in enumerate(frames)))
