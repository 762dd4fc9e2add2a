"""Measure how fast a file system writes and reads a few megabytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MOST_BYTES = 4 << 20
LEAST_FREE_BYTES = 64 << 20
"""With less free space nothing is measured."""
_CHUNKS = 4
_SECONDS, _LONG_SECONDS = 1.0, 2.0
"""After the first time no third chunk is begun, after the second no further one."""
_LEAST_SECONDS = 1e-6


def measure(place: str, size_bytes: int) -> tuple[float, float]:
    """Return the best rate at which chunks of a new file are written and read, in 1e6 bytes per second.

    Every chunk is synchronised, and the kernel is asked to drop it before it is read. The best chunk counts, because a
    busy disk or CPU delays some of them. The caller removes the file.

    Raises:
        OSError: it cannot be written or read.
    """
    chunk = os.urandom(max(1, size_bytes // _CHUNKS))
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written, write = _best(lambda number: _write(descriptor, chunk, number), _CHUNKS)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        _, read = _best(lambda number: len(os.pread(descriptor, len(chunk), number * len(chunk))), written)
    finally:
        os.close(descriptor)
    return write, read


def _write(descriptor: int, chunk: bytes, number: int) -> int:
    written = os.pwrite(descriptor, chunk, number * len(chunk))
    os.fsync(descriptor)
    return written


def _best(step: Callable[[int], int], most: int) -> tuple[int, float]:
    """Return how many steps were made, and the best rate of one."""
    began, best, number = time.monotonic(), 0.0, 0
    while number < most and time.monotonic() - began < (_SECONDS if number > 1 else _LONG_SECONDS):
        start = time.monotonic()
        moved = step(number)
        best = max(best, moved / max(time.monotonic() - start, _LEAST_SECONDS) / 1e6)
        number += 1
    return number, round(best, 3)
