"""Have NCCL tell about itself in this process, where nobody else sees it, and read what it told.

What is set, before NCCL starts: ``NCCL_DEBUG=INFO``, ``NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV,NET`` and
``NCCL_DEBUG_FILE``. NCCL reads them once per process. The file is memory (memfd_create) that NCCL opens by its path in
/proc: nobody else can read it, nothing lies on a disk, and it is gone with the process however that ends; meanwhile
whoever watches the process can read it there (`of_process`).

TUNING costs: since 2.20 rank 0 writes a line for every collective, 1.1 us each in memory (measured in C with NCCL's own
format and line buffering; 0.5 us to /dev/null), which disappears behind the launch of an operation of 10 us and more,
and 100 to 150 bytes, which in a long sweep of small sizes would be hundreds of megabytes. So while a burst is timed
`quiet` puts /dev/null in the file's place; the warm-up of every size has told the algorithm by then.

What the user has set stays: with NCCL_DEBUG=INFO or TRACE (in the environment or in one of NCCL's files) the log goes
where they want it, with the subsystems that they want, and is read there if it can be read: from NCCL_DEBUG_FILE, or
from this process's standard output if that is a file. With NCCL_DEBUG=WARN warnings are wanted on standard output: they
are repeated on standard error at the end. A file that they name is read and never removed; NCCL empties it itself.
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

from distcheck.collectives.nccl_log import parse
from distcheck.facts import Missing, NcclLog
from distcheck.probe.links import nccl_files

SUBSYSTEMS = "INIT,GRAPH,TUNING,ENV,NET"
_NAME = "distcheck-nccl"
_LINK = f"/memfd:{_NAME} (deleted)"
_MFD_NOEXEC_SEAL = 0x8
"""linux/memfd.h, since 6.3."""
_HEAD_BYTES, _TAIL_BYTES = 4 << 20, 1 << 20
"""What is read of a long log: its beginning, with how NCCL started, and its end."""
_NAMES = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


class Debug(NamedTuple):
    """Where this process's log goes."""

    path: str = ""
    """A file of the user's."""
    fd: int = -1
    """Memory of our own."""
    repeat: bool = False
    """Whether the user wanted to see warnings."""


def prepare(environ: MutableMapping[str, str], root: Path = Path("/")) -> Debug | Missing:
    """Set NCCL's variables in `environ`, this process's own; call it before anything of NCCL's runs.

    Returns where the log will be, `Missing` when there will be none that can be read. Nothing is set in that case.
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
    """Return a new file in memory that cannot be executed, which kernels from 6.3 on may insist on."""
    error: Exception
    for flags in (_MFD_NOEXEC_SEAL, 0):
        try:
            return os.memfd_create(_NAME, os.MFD_CLOEXEC | flags)
        except (OSError, AttributeError) as why:
            error = why
    return Missing(reason=f"no memory for NCCL's log: {error}")


def expanded(pattern: str, host: str = "", pid: int = 0) -> str:
    """Return the file that NCCL makes of NCCL_DEBUG_FILE: %h is the host's name up to a dot, %p the process.

    Source: NVIDIA/nccl, src/debug.cc; other letters stay as they are, and "~" means nothing.
    """
    values = {"h": (host or socket.gethostname()).partition(".")[0], "p": str(pid or os.getpid()), "%": "%"}
    return re.sub("%(.)", lambda match: values.get(match[1], match[0]), pattern)


def read(debug: Debug | Missing) -> NcclLog | Missing:
    """Return what NCCL has told so far."""
    if isinstance(debug, Missing):
        return debug
    if debug.path:
        # Standard output is buffered in full where it is a file.
        ctypes.CDLL(None).fflush(None)
    try:
        text = _text(debug.fd) if debug.fd >= 0 else _text_of(Path(debug.path))
    except OSError as error:
        return Missing(reason=f"NCCL's log {debug.path}: {error.strerror}")
    if "NCCL" not in text:
        return Missing(reason="NCCL wrote nothing to its log")
    log = parse(text, os.getpid() if debug.path else None)
    if debug.repeat:
        for warning in log.warnings:
            print(f"NCCL WARN {warning}", file=sys.stderr)  # noqa: T201 where the user looks for it
    return log


@contextlib.contextmanager
def quiet(*, backend: str = "nccl") -> Iterator[None]:
    """Keep NCCL from writing to this process's log in memory while something is timed; a user's log is left alone."""
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


def of_process(pid: int, proc: Path = Path("/proc")) -> NcclLog | None:
    """Return what NCCL has told in a process that still runs and cannot tell by itself; None where there is nothing."""
    try:
        for entry in (proc / str(pid) / "fd").iterdir():
            if str(entry.readlink()) == _LINK:
                text = _text_of(entry)
                return parse(text) if "NCCL" in text else None
    except OSError:
        return None
    return None


def _opened_by_nccl() -> int:
    """Return the descriptor by which NCCL writes to the log, -1 where it has not begun to; ours can read, too."""
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
