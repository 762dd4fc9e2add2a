"""The one way to a path that a user, a variable or a configuration names: its file system may not answer.

Who looks at a file of a dead server sleeps in the kernel and cannot be killed, and a thread that does keeps its whole
process from ending. So a path that is not on a local file system is touched by a fork of this process, which is killed
when it does not answer, and left behind if even that does not end it. The others are touched directly, at no cost.

A fork has only the thread that forked, and another thread may have held a lock: what it calls neither imports nor
prints.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from distcheck.facts.mounts import remote_mount
from distcheck.facts.storage import Silent

T = TypeVar("T")
PATIENCE_SECONDS = 3.0
_FURTHER_SECONDS = 1.0
"""For a file system when another one did not answer: several of them must not use up the time of a run."""
_CHUNK_BYTES = 1 << 20
_silent: dict[str, Silent] = {}
"""By mount point: what did not answer is not asked again."""
_answered: set[str] = set()
"""The mount points of what did."""


def touch(
    path: str | Path, named_by: str, call: Callable[[], T], seconds: float = PATIENCE_SECONDS, kind: Any = None
) -> T:
    """Return what `call` returns, which touches only this path.

    Facts need their `kind`. Of a path that it returns only os.fsdecode() is sure: from a fork it comes as bytes.

    Raises:
        OSError: `call` raises it, or (TimeoutError) the path's file system did not answer.
    """
    mount = remote_mount(os.fspath(path))
    if mount is None:
        return call()
    if mount.point not in _silent:
        patience = min(seconds, _FURTHER_SECONDS) if _silent else seconds
        answer = _answer(call, patience)
        if answer is not None:
            _answered.add(mount.point)
            return _value(answer, kind)  # type: ignore[no-any-return]
        note([Silent(os.fspath(path), (named_by,), mount.file_system, mount.source, mount.point, patience)])
    known = _silent[mount.point]
    where = f"the file system at {known.mount} ({known.file_system})" if known.mount else "its file system"
    raise TimeoutError(errno.ETIMEDOUT, f"{where} did not answer within {known.seconds:g} s")


def ask(path: str, named_by: str) -> None:
    """Learn whether a folder's file system answers, if that may not be and nothing else has shown it."""
    mount = remote_mount(path)
    if mount is not None and mount.point not in _answered:
        with suppress(OSError):
            touch(path, named_by, lambda: os.stat(f"{path}/.").st_dev)  # noqa: PTH116 pathlib drops the last part


def note(found: Iterable[Silent]) -> None:
    """Ask these file systems no more."""
    for one in found:
        _silent.setdefault(one.mount, one)


def silent() -> tuple[Silent, ...]:
    """Return the file systems that did not answer this process so far, each with the path that it was asked for."""
    return tuple(_silent.values())


def which(program: str, mode: int = os.F_OK | os.X_OK) -> str | None:
    """Return the path of a program, as `shutil.which` does; a folder of PATH that does not answer is passed over."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [program] if "/" in program else [f"{folder or '.'}/{program}" for folder in folders]
    for path in paths:
        with suppress(OSError):
            if found := touch(path, "PATH", lambda: shutil.which(path, mode)):  # noqa: B023 called at once
                return found
    return None


def _value(answer: bytes, kind: Any) -> Any:
    """Return the value in a fork's answer.

    Raises:
        OSError: the fork met it.
    """
    if not answer:
        raise OSError(errno.EIO, "the process that looks at it was killed")
    error, value = msgspec.msgpack.decode(answer)
    if error is not None:
        raise OSError(*error)
    return value if kind is None else msgspec.convert(value, kind)


def _encoded(call: Callable[[], object]) -> bytes:
    """Return what a call returns, or the error that it meets, as `_value` reads it."""
    try:
        return msgspec.msgpack.encode((None, call()), enc_hook=os.fsencode)
    except OSError as error:
        return msgspec.msgpack.encode(((error.errno or errno.EIO, error.strerror or str(error)), None))


def _answer(call: Callable[[], object], seconds: float) -> bytes | None:
    """Return a fork's answer; None if it gives none in time."""
    import warnings

    read, write = os.pipe()
    raw, deadline = bytearray(), time.monotonic() + seconds
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: see the module
            pid = os.fork()
        if not pid:
            _be(call, write)
    except OSError:  # too many processes, or no memory
        os.close(read)
        return _encoded(call)
    finally:
        os.close(write)
    poller = select.poll()
    poller.register(read, select.POLLIN)
    ended = False
    try:
        while not ended and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            part = os.read(read, _CHUNK_BYTES)
            raw += part
            ended = not part
    finally:
        os.close(read)
        with suppress(OSError):  # SIGCHLD may be ignored
            if not ended:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0 if ended else os.WNOHANG)
    return bytes(raw) if ended else None


def _be(call: Callable[[], object], write: int) -> NoReturn:
    """Be the fork."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        detach(null, null, null, write)
        rest = memoryview(_encoded(call))
        while rest:
            rest = rest[os.write(3, rest) :]
    finally:
        os._exit(0)


def detach(*streams: int) -> None:
    """Leave what a fork has of its parent: have a group of its own, these descriptors alone, and no handler.

    The first stream becomes descriptor 0, the next one 1. Otherwise a fork that is left behind keeps the parent's
    output open, and who reads it waits.
    """
    with suppress(OSError):
        os.setpgid(0, 0)
    for descriptor, given in enumerate(streams):
        os.dup2(given, descriptor)
    os.closerange(len(streams), _past_last_file())
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _past_last_file() -> int:
    """Return a number above all open descriptors: without close_range(2) each one below it is closed by a call."""
    try:
        return 1 + max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 only the names
    except OSError:
        return os.sysconf("SC_OPEN_MAX")
