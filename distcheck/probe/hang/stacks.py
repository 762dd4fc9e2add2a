"""Python stacks by py-spy, without stopping the process: its blocking mode hangs for ever on a rank in D state.

Values of variables are never kept: they hold tokens and data. Only the one that numbers a child of mp.spawn is read.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from distcheck.facts.base import Missing, legible_text
from distcheck.facts.hang import Frame, Thread
from distcheck.probe.kernel_files import contents

VARIABLE = "DISTCHECK_PY_SPY"
_AT_ONCE = 8
_UNREADABLE = "Failed to get process executable name"
"""What py-spy says of a process that runs where /proc/PID/exe may not be read."""
_MOST_FRAMES, _MOST_THREADS, _LONGEST = 80, 40, 300
_SPAWN = "torch/multiprocessing/spawn.py"
_MAIN = "MainThread"
_DETAILS = re.compile(r"[<(]")
"""Where arguments of a template or a function begin."""
_GLUE = ("0x", "pybind11::", "std::", "_Py", "Py")


class _Local(msgspec.Struct):
    name: str
    repr: str | None = None


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    module: str | None = None
    """The library of a native frame."""
    locals: list[_Local] | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False


class Dump(NamedTuple):
    """The stacks of a process."""

    threads: tuple[Thread, ...] | Missing
    spawned: int | None = None
    """Which child of mp.spawn it is."""
    native: tuple[Frame, ...] = ()
    """What the innermost Python frame of the main thread called in libraries, innermost first."""


def sampler() -> str | Missing:
    """Return the path of py-spy: named by DISTCHECK_PY_SPY, beside the interpreter, or on PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named) or Missing(reason=f"{VARIABLE} names {named}, which is no program")
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    return found or Missing(reason="py-spy is not installed; pip install 'distcheck[hang]'")


def dumps(
    program: str, pids: Sequence[int], seconds: float, numbering: frozenset[int] = frozenset(), *, native: bool = False
) -> dict[int, Dump]:
    """Return the stacks of processes, in parallel; each dump that takes longer than `seconds` is ended.

    `numbering` are those whose number as a child of mp.spawn is wanted. `native` stops each process meanwhile.
    """
    until = time.monotonic() + seconds
    waiting = list(pids)
    running: dict[int, subprocess.Popen[bytes]] = {}
    found: dict[int, Dump] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                pid = waiting.pop(0)
                options = ("--native",) if native else ("--nonblocking", *(("--locals",) if pid in numbering else ()))
                running[pid] = _started(program, pid, options)
            pid = next(iter(running))
            found[pid] = _ended(running[pid], pid, until - time.monotonic())
            del running[pid]
    finally:
        for each in running.values():
            _kill(each)
    return found


def _started(program: str, pid: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
    words = [program, "dump", "--json", "--pid", str(pid), *options]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _ended(child: subprocess.Popen[bytes], pid: int, seconds: float) -> Dump:
    try:
        output, errors = child.communicate(timeout=max(0.05, seconds))
    except subprocess.TimeoutExpired:
        _kill(child)
        return Dump(Missing(reason="py-spy did not end in time"))
    if child.returncode:
        first = errors.decode("utf-8", "replace").strip().partition("\n")[0].removeprefix("Error: ")
        if _UNREADABLE in first and os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
            first = "Permission Denied"
        return Dump(Missing(reason=f"py-spy: {first or f'exit code {child.returncode}'}"[:_LONGEST]))
    return parsed(output, pid)


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def parsed(output: bytes, pid: int) -> Dump:
    """Return what py-spy's JSON says of a process."""
    try:
        threads = msgspec.json.decode(output, type=list[_Thread])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Dump(Missing(reason=f"py-spy's output cannot be read: {error}"[:_LONGEST]))
    if not threads:
        return Dump(Missing(reason="py-spy saw no Python thread"))
    main = _main(threads, _inner(pid))
    kept = tuple(_thread(each, main=each is main) for each in threads[:_MOST_THREADS])
    called = takewhile(lambda frame: frame.module is not None, main.frames)
    native = (Frame(os.path.basename(f.module or ""), 0, _DETAILS.split(f.name)[0][:_LONGEST]) for f in called)  # noqa: PTH119
    return Dump(kept, _number(main), tuple(f for f in native if not f.function.startswith(_GLUE)))


def _inner(pid: int) -> frozenset[int]:
    """Return a process's numbers in its pid namespaces; py-spy names threads by the innermost."""
    for line in contents(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("NSpid:"):
            return frozenset(int(word) for word in line.split()[1:])
    return frozenset({pid})


def _main(threads: list[_Thread], numbers: Collection[int]) -> _Thread:
    """Return the main thread; below Python 3.11 py-spy knows no thread's number."""
    by_number = (each for each in threads if each.os_thread_id in numbers)
    by_name = (each for each in threads if each.thread_name == _MAIN)
    by_start = (each for each in threads if each.frames and each.frames[-1].name == "<module>")
    return next(by_number, None) or next(by_name, None) or next(by_start, threads[0])


def _thread(thread: _Thread, *, main: bool) -> Thread:
    frames = tuple(
        Frame(legible_text(f.filename)[-_LONGEST:], max(f.line, 0), f.name[:_LONGEST])
        for f in thread.frames[:_MOST_FRAMES]
        if f.module is None
    )
    return Thread((thread.thread_name or "")[:_LONGEST], main, thread.owns_gil, frames)


def _number(main: _Thread) -> int | None:
    """Return the argument `i` of the function in which mp.spawn runs a child."""
    wraps = (frame for frame in main.frames if frame.name == "_wrap" and frame.filename.endswith(_SPAWN))
    values = (each.repr or "" for frame in wraps for each in frame.locals or () if each.name == "i")
    return next((int(value) for value in values if value.isdecimal()), None)
