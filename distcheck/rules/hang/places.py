"""Where a rank is in its own program: stacks with the frames of libraries folded.

The frame that counts is the innermost one of the user's program. What the library frames inside of it say is whether
the rank communicates, and by which operation; a thread that the main thread only waits for counts in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from distcheck.facts.hang import Frame, Helper, Moment, Thread

_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64|32)?/python\d(?:\.\d+)?t?/|^<|(?:^|/)python\d+\.zip/|/bin/[^/.]+$"
    r"|(?:^|/)torch/(?:distributed|autograd|cuda|multiprocessing|nn|optim|utils|_dynamo|_inductor|_ops|serialization)\b"
)
_PACKAGE = re.compile(r"^.*-packages/(?!(?:torch|ray|accelerate|deepspeed)/)[^/]+(?:/|$)")
"""An installed program's package; those that start programs of others are none."""
_COMMUNICATION = re.compile(
    r"(?:^|/)torch/distributed/(?:distributed_c10d|rendezvous|device_mesh|_functional_collectives|nn/functional"
    r"|_symmetric_memory/__init__|_composable_state|utils|rpc/\w+)\.py$"
)
_FUNCTIONS = re.compile(r"(?:^|/)torch/distributed/(?:distributed_c10d|rendezvous|_functional_collectives)\.py$")
_BACKWARD = re.compile(r"(?:^|/)torch/autograd/(?:graph|__init__)\.py$")
_GPU = re.compile(r"(?:^|/)torch/cuda/(?:__init__|streams|graphs)\.py$")
_WAITS_FOR_THREAD = re.compile(r"(?:^|/)(?:threading|queue|concurrent/futures/\w+|ray/_private/worker)\.py$")
_THREAD_FUNCTIONS = frozenset(
    {"join", "_wait_for_tstate_lock", "_shutdown", "result", "wait", "get", "_join", "shutdown", "main_loop"}
)
_SERVES = re.compile(
    r"(?:^|/)(?:socketserver|wsgiref/\w+|xmlrpc/server|grpc/_server|uvicorn/\w+|hypercorn/\S+|aiohttp/web|tornado/\w+)\.py$"
)
_LOOPS = re.compile(r"(?:^|/)asyncio/\w+\.py$")
_IDLES = re.compile(
    r"\A.*/ray/_private/worker\.py:.*\bmain_loop\n"
    r"|/queue\.py:.*\bget\n.*/vllm/v1/engine/core\.py:.*process_input_queue\n"
    r"|/shm_broadcast\.py:.*\bdequeue\n.*/multiproc_executor\.py:.*\bworker_busy_loop\n"
)
"""Frames, innermost first, of an actor of Ray, an engine or a worker of vLLM that waits for its next call."""
_FORKED = re.compile(r"(?:^|/)multiprocessing/process\.py:.*\b_bootstrap$")
"""Frames outside of it are those of the parent when it forked."""
INIT = "init_process_group"
BACKWARD = "backward"
GPU = "cuda synchronize"
STORE = "the store"
WORK = "Work.wait"
"""A wait in torch's C++ code that shows no frame of torch: of Work.wait, or the like."""


class StackPlace(NamedTuple):
    """Where a process is."""

    at: str = ""
    """data.py:41; empty if no stack is known."""
    function: str = ""
    path: str = ""
    operation: str = ""
    """The communication that it is in, such as all_reduce; empty if none."""
    thread: str = ""
    """The thread, if it is not the main one."""
    inside: tuple[str, ...] = ()
    """The library frames inside of that line, outermost last, as file/function."""
    ended: bool = False
    """Whether the program has ended and only waits for its threads."""
    idles: bool = False
    """Whether it is a worker of Ray or vLLM that waits for its next call."""

    def within(self, *ends: str) -> bool:
        """Return whether one of the library frames is that of a file whose path ends like one of these."""
        return any(frame.rpartition(":")[0].endswith(ends) for frame in self.inside)

    def calls(self, function: str) -> bool:
        """Return whether one of the library frames is this function."""
        return any(_last(frame.rpartition(":")[2]) == function for frame in self.inside)

    @property
    def serves(self) -> bool:
        """Whether it is in a server's library."""
        return any(_SERVES.search(frame.rpartition(":")[0]) for frame in self.inside)

    @property
    def loops(self) -> bool:
        """Whether it is in an event loop, of a server or of anything else, or waits for its next call."""
        return self.idles or self.serves or any(_LOOPS.search(frame.rpartition(":")[0]) for frame in self.inside)


def place_of(sampled: Moment | Helper) -> StackPlace:
    """Return where a rank or a process below it is, as far as its stack is known."""
    threads, package = _threads(sampled)
    if not threads:
        return StackPlace()
    main = next((thread for thread in threads if thread.main), threads[0])
    own = _of_thread(main, package)
    if not _waits_for_thread(main, own):
        return own
    others = [(thread, _of_thread(thread, package)) for thread in threads if not thread.main]
    communicating = [pair for pair in others if pair[1].operation]
    users = [pair for pair in others if _users(pair[0], package)]
    working = [pair for pair in users if not _waits_for_thread(*pair)]
    thread, other = next(iter(communicating or working or (users if own.ended else [])), (main, own))
    return own if thread is main else other._replace(thread=thread.name or "a thread", ended=own.ended)


def beside(moment: Moment) -> list[tuple[str, StackPlace]]:
    """Return the other threads of the program by name, and where they are."""
    threads, package = _threads(moment)
    return [(t.name, _of_thread(t, package)) for t in threads if not t.main and _users(t, package)]


def users_frames(moment: Moment, thread: str = "") -> tuple[Frame, ...]:
    """Return the frames of the user's program in the main thread, or in another one."""
    threads, package = _threads(moment)
    shown = (each for each in threads if (each.name == thread if thread else each.main))
    return tuple(frame for each in shown for frame in _users(each, package))


def _threads(sampled: Moment | Helper) -> tuple[tuple[Thread, ...], str]:
    """Return the threads, and the folder of the installed package that is the program, if no other file is."""
    threads = sampled.threads if isinstance(sampled.threads, tuple) else ()
    own = _own(next((each for each in threads if each.main), threads[0])) if threads else []
    if any(not _LIBRARY.search(frame.file) for frame in own):
        return threads, ""
    return threads, next((found[0] for frame in reversed(own) if (found := _PACKAGE.match(frame.file))), "")


def _users(thread: Thread, package: str) -> list[Frame]:
    """Return the frames that do not belong to Python, to torch or to an installed package but the program's own."""
    return [f for f in _own(thread) if not _LIBRARY.search(f.file) or (package and f.file.startswith(package))]


def _own(thread: Thread) -> list[Frame]:
    return list(takewhile(lambda frame: not _FORKED.search(f"{frame.file}:{frame.function}"), thread.frames))


def _of_thread(thread: Thread, package: str) -> StackPlace:
    """Return where a thread is: in its innermost frame of the program, or of any without one of the program."""
    users = _users(thread, package)
    frame = next(iter(users or thread.frames), Frame("", 0, ""))
    inside = thread.frames[: thread.frames.index(frame)] if users else thread.frames
    return StackPlace(
        at=f"{_name(frame.file)}:{frame.line}" if frame.file else "",
        function=_last(frame.function),
        path=frame.file,
        operation=_operation(inside),
        inside=tuple(f"{f.file}:{f.function}" for f in inside),
        ended=any(_last(f.function) == "_shutdown" and _name(f.file) == "threading.py" for f in inside),
        idles=_IDLES.search("".join(f"{f.file}:{f.function}\n" for f in thread.frames)) is not None,
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _last(function: str) -> str:
    """Return a function's own name; since Python 3.11 py-spy puts the names around it before it."""
    return function.rpartition(".")[2] or function


def _operation(inside: Sequence[Frame]) -> str:
    named = [_last(f.function) for f in inside if _FUNCTIONS.search(f.file) and "<" not in _last(f.function)]
    if named:
        return named[-1]
    if communicating := next((f for f in inside if _COMMUNICATION.search(f.file)), None):
        return _last(communicating.function)
    if any(_BACKWARD.search(f.file) and "backward" in f.function for f in inside):
        return BACKWARD
    return GPU if any(_GPU.search(f.file) and _last(f.function) in {"synchronize", "wait"} for f in inside) else ""


def _waits_for_thread(thread: Thread, place: StackPlace) -> bool:
    first = next(iter(thread.frames), Frame("", 0, ""))
    waits = _WAITS_FOR_THREAD.search(first.file) is not None and _last(first.function) in _THREAD_FUNCTIONS
    return waits and not place.operation
