"""Files that the user names: read to their end, written atomically, never waited for without end."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path

from distcheck.facts.errors import UsageError, WriteError

LONGEST_NAME = 32
"""Characters of a name that becomes part of another file's."""
_CHUNK_BYTES = 1 << 24
_PIPE_SECONDS = 10
_READER_SECONDS = 2.0
"""For the program that reads an output; a run has 4 s for its outputs if it used all of --timeout."""


def write(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically, by a temporary file; write directly to devices and pipes.

    Raises:
        WriteError: it could not be written, or no program reads the pipe; the message says why.
    """
    try:
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if stat.S_ISFIFO(mode):
            _write_to_pipe(path, text.encode("utf-8", "backslashreplace"))
            return
        if not stat.S_ISREG(mode):
            path.write_text(text, "utf-8", "backslashreplace")
            return
        temporary = path.with_name(f".{path.name[:LONGEST_NAME]}.{os.urandom(4).hex()}")
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error.strerror or error}; choose another file") from error


def _write_to_pipe(path: Path, rest: bytes) -> None:
    """Write to a pipe; its reader may come a moment later, and must go on reading.

    Raises:
        OSError: no program opens it to read it, or none reads on.
    """
    until = time.monotonic() + _READER_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                reason = f"no program opened the pipe to read it within {_READER_SECONDS:g} s"
                raise TimeoutError(errno.ETIMEDOUT, reason) from error
            time.sleep(0.05)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        while rest:
            if not poller.poll(_PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing was read from the pipe for {_PIPE_SECONDS} s")
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def read(path: Path, most_bytes: int) -> bytes:
    """Return what a file, a device or a pipe holds, of something larger the beginning: more than `most_bytes`.

    Raises:
        OSError: it cannot be read, or is a pipe into which nothing is written for 10 s.
    """
    raw = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe waits for its writer
    try:
        os.set_blocking(descriptor, True)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        while len(raw) <= most_bytes:
            if not poller.poll(_PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing came from it for {_PIPE_SECONDS} s")
            more = os.read(descriptor, _CHUNK_BYTES)
            if not more:
                break
            raw += more
    finally:
        os.close(descriptor)
    return bytes(raw)


def check_writable(path: Path, option: str) -> None:
    """Check, before anything is measured, that a file can be written.

    Raises:
        UsageError: its folder does not exist or is not writable, or it is a folder itself and must not be.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # since Python 3.14, is_dir() and exists() raise no error
        problem = _why_not_writable(path, option)
    except OSError as error:  # a folder on the way to it may not be entered, or a name is too long
        too_long = error.errno == errno.ENAMETOOLONG
        remedy = "choose a shorter name" if too_long else "choose another or change the permissions of its folders"
        problem = f"{error.strerror or error}; {remedy}"
    if problem:
        raise UsageError(f"{option} {path}: {problem}")


def _why_not_writable(path: Path, option: str) -> str:
    """Return why a file cannot be written, and the remedy; empty if it can."""
    if path.is_dir() and option != "--save":
        return f"this is a folder; name a file in it, for example {path / 'FILE'}"
    if path.exists() and not path.is_dir():
        writable = os.access(path, os.W_OK)
        return "" if writable else "the file is not writable; choose another or change its permissions"
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir():
        there = next(part for part in (folder, *folder.parents) if part.exists())
        if not there.is_dir():
            return f"{there} is a file and not a folder; choose another folder"
        return f"the folder {folder} does not exist; create it with: mkdir -p {folder}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} is not writable; choose another"
