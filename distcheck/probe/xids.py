"""Read recent errors of NVIDIA's driver (Xids) from the kernel log."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from pathlib import Path

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Xid

KERNEL_LOG = Path("/dev/kmsg")
_DEVICE = os.makedev(1, 11)
_RECORD_BYTES = 16384
"""More than the largest record (CONSOLE_EXT_LOG_MAX in the kernel's internal.h is 8192)."""
_MOST_BYTES = 64 << 20
_MOST_KINDS = 128
_RECENT_SECONDS = 24 * 3600.0
_TEXT = 160
_HEAD = re.compile(r"[0-9]+,[0-9]+,([0-9]+),")
"""Priority, number and microseconds since boot, as Documentation/ABI/testing/dev-kmsg says."""
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})[^)]*\): ([0-9]{1,5})\b(?:, *(.*))?", re.IGNORECASE
)
"""NVRM: Xid (PCI:0000:1b:00): 79, pid=77, name=python3, GPU has fallen off the bus. In MIG mode the GPU instance
follows the address."""


def recent(path: Path = KERNEL_LOG, seconds: float = 1.0) -> tuple[Xid, ...] | Missing:
    """Return the last day's Xids, the newest of each number and GPU, newest last."""
    found = read(b"NVRM: Xid", path, seconds)
    return found if isinstance(found, Missing) else _xids(found)


def read(word: bytes, path: Path = KERNEL_LOG, seconds: float = 1.0) -> list[tuple[float | None, str]] | Missing:
    """Return the last day's lines of the kernel log with this word, and how many seconds ago each was, None if unknown.

    The log is read without waiting, for at most `seconds`. Its clock stops while the machine sleeps, as CLOCK_MONOTONIC
    does.
    """
    try:
        text = _read(path, word, time.monotonic() + seconds)
    except OSError as error:
        return Missing(reason=_refusal(path, error))
    if isinstance(text, Missing):
        return text
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lines = ((_ago(line, now), line) for line in text.splitlines())
    return [(ago, line) for ago, line in lines if ago is None or ago <= _RECENT_SECONDS]


def _ago(line: str, now: float) -> float | None:
    head = _HEAD.match(line)
    ago = None if head is None else now - int(head[1]) / 1e6
    # A negative one is not of our clock, as in a time namespace.
    return None if ago is None or ago < -1.0 else round(max(0.0, ago), 1)


def _read(path: Path, word: bytes, until: float) -> str | Missing:
    """Return the lines of the log with this word."""
    # Some container runtimes link the name to a terminal.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not (stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEVICE):
            return Missing(reason=f"{path} is not the kernel log here, as in containers")
        found, rest, size = [], b"", 0
        while size <= _MOST_BYTES and time.monotonic() < until:
            try:
                chunk = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the oldest records were overwritten; the next read continues after them
            if not chunk:
                break
            size += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            found += [line for line in lines if word in line]
        else:
            if not found:
                return Missing(reason=f"reading {path} to its end took too long")
        if word in rest:
            found.append(rest)
        return b"\n".join(found).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _refusal(path: Path, error: OSError) -> str:
    if error.errno in {errno.EPERM, errno.EACCES}:
        return f"no permission to read the kernel log ({path}: {error.strerror}; kernel.dmesg_restrict is 1)"
    if error.errno == errno.ENOENT:
        return f"{path} does not exist here, as in containers"
    return f"{path}: {error.strerror}"


def _xids(lines: list[tuple[float | None, str]]) -> tuple[Xid, ...]:
    newest: dict[tuple[int, str], Xid] = {}
    for ago, line in lines:
        match = _XID.search(line)
        if match is None:
            continue
        domain, bus, device, number, words = match.groups()
        pci = f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.0"
        found = Xid(int(number), pci, ago, (words or "")[:_TEXT])
        newest.pop((found.number, pci), None)
        newest[found.number, pci] = found
    return tuple(newest.values())[-_MOST_KINDS:]
