"""Redirects NCCL's debug log of this process to private memory, and reads it.

Before NCCL starts, these are set: ``NCCL_DEBUG=INFO``, ``NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV,NET`` and
``NCCL_DEBUG_FILE``. NCCL reads them once per process. The file is memory (memfd_create) that NCCL opens by its path in
/proc. No other user can read it, nothing is written to a disk, and it disappears with the process. The process that
watches this one can read it there meanwhile (`of_process`).

TUNING has a cost: since 2.20 rank 0 writes a line for every collective. It takes 1.1 us in memory (measured in C with
NCCL's own format and line buffering; 0.5 us to /dev/null), which the launch of an operation of 10 us and more hides. It
has 100 to 150 bytes, which in a long sweep of small sizes would add up to hundreds of megabytes. So `quiet` replaces
the file by /dev/null while a burst is timed; the warm-up of every size has logged the algorithm by then.

The user's settings stay. With NCCL_DEBUG=INFO or TRACE (in the environment or in one of NCCL's files) the log goes to
the user's destination with the user's subsystems, and is read there if possible: from NCCL_DEBUG_FILE, or from this
process's standard output if that is a file. With NCCL_DEBUG=WARN the user expects warnings on standard output: they are
repeated on standard error at the end. A file named by the user is read and never removed; NCCL truncates it itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from distcheck.collectives.nccl_log import parse
from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclLog
from distcheck.probe.links import nccl_files

SUBSYSTEMS = "INIT,GRAPH,TUNING,ENV,NET"
_NAME = "distcheck-nccl"
_LINK = f"/memfd:{_NAME} (deleted)"
_MFD_NOEXEC_SEAL = 0x8
"""linux/memfd.h, since 6.3."""
_HEAD_BYTES, _TAIL_BYTES = 4 << 20, 1 << 20
"""The parts of a long log that are read: its beginning, with NCCL's start-up, and its end."""
_NAMES = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


class Debug(NamedTuple):
    """The destination of this process's log."""

    path: str = ""
    """The user's file."""
    fd: int = -1
    """The descriptor of our own memory."""
    repeat: bool = False
    """Whether the user wants to see warnings."""


def prepare(environ: MutableMapping[str, str], root: Path = Path("/")) -> Debug | Missing:
    """Set NCCL's variables in `environ`, this process's own; call it before NCCL starts.

    Returns the log's destination, or `Missing` if no readable log is possible; then it sets nothing.
    """
    wanted = {name: environ[name] for name in _NAMES if environ.get(name)}
    wanted = nccl_files(environ, root, _NAMES) | wanted
    level = wanted.get("NCCL_DEBUG", "").upper()
    path = wanted.get("NCCL_DEBUG_FILE", "")
    if level in {"INFO", "TRACE", "ABORT"}:
        if path:
            return Debug(path=expanded(path))
        if stat.S_ISREG(os.fstat(1).st_mode):
            return Debug(path="/proc/self/fd/1")
        return Missing(reason=f"NCCL_DEBUG={level} sends NCCL's log to standard output, where it was left")
    if level == "WARN" and path:
        return Missing(reason=f"NCCL_DEBUG=WARN and NCCL_DEBUG_FILE={path} were left as they are: the log is too short")
    fd = _memory()
    if isinstance(fd, Missing):
        return fd
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
    environ["NCCL_DEBUG_FILE"] = f"/proc/self/fd/{fd}"
    return Debug(fd=fd, repeat=level == "WARN")


def _memory() -> int | Missing:
    """Return a new non-executable file in memory, which kernels from 6.3 on may require."""
    error: Exception
    for flags in (_MFD_NOEXEC_SEAL, 0):
        try:
            return os.memfd_create(_NAME, os.MFD_CLOEXEC | flags)
        except (OSError, AttributeError) as why:
            error = why
    return Missing(reason=f"no memory for NCCL's log: {error}")


def expanded(pattern: str, host: str = "", pid: int = 0) -> str:
    """Return the file name of NCCL_DEBUG_FILE: %h is the host name up to a dot, %p the pid.

    Source: NVIDIA/nccl, src/debug.cc; other letters stay as they are, and "~" means nothing.
    """
    values = {"h": (host or socket.gethostname()).partition(".")[0], "p": str(pid or os.getpid()), "%": "%"}
    return re.sub("%(.)", lambda match: values.get(match[1], match[0]), pattern)


def read(debug: Debug | Missing, *, last: bool = True) -> NcclLog | Missing:
    """Return NCCL's log so far; the last time, repeat its warnings if the user wants to see them."""
    if isinstance(debug, Missing):
        return debug
    if debug.path:
        # Standard output to a file is fully buffered.
        ctypes.CDLL(None).fflush(None)
    try:
        text = _text(debug.fd) if debug.fd >= 0 else _text_of(Path(debug.path))
    except OSError as error:
        return Missing(reason=f"NCCL's log {debug.path}: {error.strerror}")
    if "NCCL" not in text:
        return Missing(reason="NCCL wrote nothing to its log")
    log = parse(text, os.getpid() if debug.path else None)
    if debug.repeat and last:
        for warning in log.warnings:
            print(f"NCCL WARN {warning}", file=sys.stderr)  # noqa: T201 for the user
    return log


@contextlib.contextmanager
def quiet(*, backend: str = "nccl") -> Iterator[None]:
    """Discard NCCL's writes to our log in memory while timing; a user's log is not changed."""
    theirs = _opened_by_nccl() if backend == "nccl" else -1
    if theirs < 0:
        yield
        return
    log = os.dup(theirs)
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, theirs, inheritable=False)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(log, theirs, inheritable=False)
        os.close(log)


def later(first: NcclLog | Missing, last: NcclLog | Missing) -> NcclLog | Missing:
    """Return the log of the whole world with the warnings of what came later, as in the groups of a mesh."""
    if isinstance(first, Missing) or isinstance(last, Missing):
        return last if isinstance(first, Missing) else first
    return replace(first, warnings=last.warnings, diagnostics=last.diagnostics)


def of_process(pid: int, proc: Path = Path("/proc")) -> NcclLog | None:
    """Return NCCL's log from a running process that cannot report it itself; None without one."""
    try:
        for entry in (proc / str(pid) / "fd").iterdir():
            if str(entry.readlink()) == _LINK:
                text = _text_of(entry)
                return parse(text) if "NCCL" in text else None
    except OSError:
        return None
    return None


def _opened_by_nccl() -> int:
    """Return NCCL's own descriptor of the log, which is write-only; -1 if it has none yet."""
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                flags = fcntl.fcntl(int(entry.name), fcntl.F_GETFL)
                if flags & os.O_ACCMODE == os.O_WRONLY and str(entry.readlink()) == _LINK:
                    return int(entry.name)
    return -1


def _text_of(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "is no file")
        return _text(fd)
    finally:
        os.close(fd)


def _text(fd: int) -> str:
    size = os.fstat(fd).st_size
    head = os.pread(fd, _HEAD_BYTES, 0)
    tail = os.pread(fd, _TAIL_BYTES, max(len(head), size - _TAIL_BYTES)) if size > len(head) else b""
    return (head + tail).decode("utf-8", "replace")
