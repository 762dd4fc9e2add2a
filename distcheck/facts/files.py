"""Files that the user names: read to their end, never waited for without end."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

from distcheck.facts.touch import touch

LONGEST_NAME = 32
"""Characters of a name that becomes part of another file's."""
_CHUNK_BYTES = 1 << 24
PIPE_SECONDS = 10
_READ_SECONDS = 60.0


def read(path: Path, most_bytes: int, named_by: str = "FILE") -> bytes:
    """Return what a file, a device or a pipe holds, of something larger the beginning: more than `most_bytes`.

    Raises:
        OSError: it cannot be read, its file system does not answer, or it is a pipe into which nothing is written for
            10 s.
    """
    touch(path, named_by, lambda: os.stat(path).st_size)  # noqa: PTH116 in time, however large it is
    return touch(path, named_by, lambda: _read(path, most_bytes), _READ_SECONDS)


def _read(path: Path, most_bytes: int) -> bytes:
    raw = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe waits for its writer
    try:
        os.set_blocking(descriptor, True)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        while len(raw) <= most_bytes:
            if not poller.poll(PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing came from it for {PIPE_SECONDS} s")
            more = os.read(descriptor, _CHUNK_BYTES)
            if not more:
                break
            raw += more
    finally:
        os.close(descriptor)
    return bytes(raw)
