"""The file of one node's history, to which many processes may append at the same time.

``DIR/node3.jsonl`` has one line of JSON, shorter than 4 KiB, for each run on node3, the newest last.

A writer holds a lock of the file and writes its line in one call. NFS maps flock to a lock at the server since
Linux 2.6.12 (https://man7.org/linux/man-pages/man2/flock.2.html). O_APPEND alone is not enough there, because the
client seeks first (https://man7.org/linux/man-pages/man2/open.2.html). A writer that gets no lock within a second
appends without it. A line that was torn nevertheless is skipped and counted, and the next writer begins a new line.

The folder decides who may write: a new file gets the folder's permissions. A file of more than 512 KiB is cut to the
newer half.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from distcheck.facts.history import SCHEMA, PastRun

LARGEST_BYTES = 1 << 19
"""A file is cut to half of this when it has grown to more."""
_LOCK_SECONDS = 1.0
_LONGEST_NAME = 200
SUFFIX = ".jsonl"


class Lines(NamedTuple):
    """What a file holds."""

    runs: list[PastRun]
    unreadable: int = 0
    newer: int = 0
    why_not: str = ""


class _Header(msgspec.Struct):
    schema: int = 0


def name_of(node: str) -> str:
    """Return the name of a node's file; a node's name may contain anything."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else f"%{ord(c):X}" for c in node)
    return ("%2E" + plain[1:] if plain.startswith(".") else plain)[:_LONGEST_NAME] + SUFFIX


def _open(path: Path, flags: int) -> int:
    """Open a regular file, not a link or a pipe in its place; return its descriptor."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    return descriptor


def read_file(path: Path, most_bytes: int) -> Lines:
    """Read the newest lines of a file; no file is no line."""
    try:
        with open(_open(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most_bytes))
            text = file.read(most_bytes)
    except FileNotFoundError:
        return Lines([])
    except OSError as error:
        return Lines([], why_not=f"{path.name}: {error.strerror or error}")
    return parse(text.partition(b"\n")[2] if size > most_bytes else text)


def parse(text: bytes) -> Lines:
    """Return the runs in a file's text; a line that appears twice counts once."""
    runs: dict[str, PastRun] = {}
    unreadable = newer = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            if (found := msgspec.json.decode(line, type=PastRun)).schema <= SCHEMA:
                runs[found.run] = found
            else:
                newer += 1
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            newer += _is_newer(line)
            unreadable += not _is_newer(line)
    return Lines(list(runs.values()), unreadable, newer)


def _is_newer(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Header).schema > SCHEMA
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def append(path: Path, line: str) -> None:
    """Append a line to a file, which is made if there is none.

    Raises:
        OSError: the line was not written.
    """
    with _appending(path) as descriptor, _locked(descriptor) as locked:
        _add(descriptor, f"{line}\n".encode())
        if locked and os.fstat(descriptor).st_size > LARGEST_BYTES:
            _cut(path)


@contextmanager
def _appending(path: Path) -> Iterator[int]:
    """Open a file to append to it; a new file gets the folder's permissions to read and write."""
    try:  # not with O_CREAT, which the kernel may refuse for another user's file in a folder like /tmp
        descriptor = _open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        descriptor = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        with suppress(OSError):  # another process may have been faster, and the file its own
            os.fchmod(descriptor, path.parent.stat().st_mode & 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int) -> Iterator[bool]:
    """Hold the lock of a file; False if it could not be had within a second."""
    until = time.monotonic() + _LOCK_SECONDS
    locked = False
    while not locked:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            if time.monotonic() > until:
                break
            time.sleep(0.002)
        except OSError:  # a file system without locks
            break
    try:
        yield locked
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _add(descriptor: int, line: bytes) -> None:
    """Append a line in one call; begin a new line if the last one was torn."""
    size = os.fstat(descriptor).st_size
    torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
    text = b"\n" * bool(torn) + line
    if os.write(descriptor, text) < len(text):
        raise OSError(0, "no space left for a whole line")


def _cut(path: Path) -> None:
    """Keep the newer half of a file.

    The newer half is copied over the older one before the rest is cut off, so a process that is killed here leaves
    lines twice, and loses none.
    """
    with open(_open(path, os.O_RDWR), "r+b") as file:
        file.seek(-LARGEST_BYTES // 2, os.SEEK_END)
        kept = file.read().partition(b"\n")[2]
        file.seek(0)
        file.write(kept)
        file.truncate()
