"""In which system call a process's main thread is, on what, and which library called it.

/proc/PID/syscall and /proc/PID/mem need the right to attach, as py-spy does; neither stops the process.
"""

from __future__ import annotations

import os
import platform
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import unpack, unpack_from

from distcheck.facts.base import legible_text
from distcheck.facts.hang import SystemCall
from distcheck.probe import process
from distcheck.probe.kernel_files import contents

_X86_64 = {
    0: "read", 1: "write", 3: "close", 5: "fstat", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    23: "select", 24: "sched_yield", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
    78: "getdents", 82: "rename", 83: "mkdir", 87: "unlink", 202: "futex", 217: "getdents64", 230: "clock_nanosleep",
    232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll",
    281: "epoll_pwait", 288: "accept4", 332: "statx", 2: "open", 4: "stat", 6: "lstat",
    16: "ioctl", 40: "sendfile", 84: "rmdir", 62: "kill",
    9: "mmap", 11: "munmap", 26: "msync", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
}  # fmt: skip
_AARCH64 = {
    29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 56: "openat", 57: "close", 61: "getdents64", 63: "read",
    64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 71: "sendfile", 72: "pselect6", 73: "ppoll",
    79: "newfstatat", 80: "fstat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 22: "epoll_pwait", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
    211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4", 291: "statx", 25: "fcntl", 124: "sched_yield",
}  # fmt: skip
_NAMES = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
_ON_DESCRIPTOR = frozenset({
    "read", "write", "close", "fstat", "pread64", "pwrite64", "readv", "writev", "connect", "accept", "accept4",
    "sendto", "recvfrom", "sendmsg", "recvmsg", "fcntl", "flock", "fsync", "fdatasync", "getdents", "getdents64",
    "ioctl",
})  # fmt: skip
_ON_PATH = {"open": 0, "stat": 0, "lstat": 0, "mkdir": 0, "rmdir": 0, "unlink": 0, "rename": 0}
_ON_PATH_AT = dict.fromkeys(["openat", "newfstatat", "statx", "mkdirat", "unlinkat"], 1)
_STACK_BYTES = 8192
_MOST_LIBRARIES = 6
_SYSTEM = re.compile(r"^(ld-|libc[-.]|libpthread|\[)")
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
_LONGEST = 200


def system_call(pid: int) -> SystemCall | None:
    """Return the system call of a process's main thread, None if that may not be read."""
    fields = contents(Path(f"/proc/{pid}/syscall")).split()
    if not fields:
        return None
    if fields[0] == "running" or len(fields) < 9:
        return SystemCall("running")
    name = _NAMES.get(int(fields[0]), "")
    arguments = [int(word, 16) for word in fields[1:]]
    target, port = _target(pid, name, arguments)
    return SystemCall(name, legible_text(target)[:_LONGEST], port, _libraries(pid, arguments[6]))


def _target(pid: int, name: str, arguments: Sequence[int]) -> tuple[str, int | None]:
    """Return what a call is about, and of a socket the port of the other end."""
    if name in _ON_DESCRIPTOR:
        return _descriptor(pid, arguments[0])
    path = _ON_PATH.get(name, _ON_PATH_AT.get(name))
    if path is not None:
        return _memory(pid, arguments[path], 4096).partition(b"\0")[0].decode("utf-8", "replace"), None
    if name in {"wait4", "waitid"}:
        child = arguments[0] if name == "wait4" else arguments[1]
        known = 0 < child < 1 << 31
        return (f"process {child} ({process.command_or_name(child)})" if known else "a child process"), None
    if name in {"poll", "ppoll"} and 0 < arguments[1] <= 64:
        entries = _memory(pid, arguments[0], 8 * arguments[1])
        found = [_descriptor(pid, unpack_from("<i", entries, n)[0]) for n in range(0, len(entries) - 7, 8)]
        return ", ".join(dict.fromkeys(text for text, _ in found if text)), next((p for _, p in found if p), None)
    return "", None


def _descriptor(pid: int, number: int) -> tuple[str, int | None]:
    number &= 0xFFFFFFFF
    try:
        leads_to = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 no path of a file
    except OSError:
        return f"descriptor {number}" if number < 1 << 20 else "", None
    if found := _SOCKET.match(leads_to):
        return _peer(pid, found[1])
    return f"{leads_to}{' (standard input)' if number == 0 else ''}", None


def _peer(pid: int, inode: str) -> tuple[str, int | None]:
    from distcheck.probe.hang.sockets import connection

    found = connection(pid, inode)
    if found is None:
        return "a socket", None
    port = int(found.remote.rpartition(":")[2])
    return f"a connection to {found.remote}" if port else f"a socket at {found.local}", port or None


def _memory(pid: int, address: int, length: int) -> bytes:
    """Return what a process has at an address, as much of it as there is; empty if that may not be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, length, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(descriptor)


def _libraries(pid: int, stack: int) -> tuple[str, ...]:
    """Return whose code called, innermost first: the files in which words of the stack are addresses after a call."""
    words = _memory(pid, stack, _STACK_BYTES)
    starts, ends, names = _code(pid)
    found: list[str] = []
    for address in unpack(f"<{len(words) // 8}Q", words[: len(words) // 8 * 8]):
        place = bisect_right(starts, address) - 1
        if place < 0 or address >= ends[place] or names[place] in found or _SYSTEM.match(names[place]):
            continue
        if _follows_call(pid, address):
            found.append(names[place])
            if len(found) == _MOST_LIBRARIES:
                break
    return tuple(found)


def _code(pid: int) -> tuple[list[int], list[int], list[str]]:
    """Return where the executable mappings of a process begin and end, and the names of their files."""
    starts, ends, names, lines = [], [], [], list[str]()
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) > 5 and "x" in fields[1]:
            first, _, last = fields[0].partition("-")
            starts.append(int(first, 16))
            ends.append(int(last, 16))
            names.append(os.path.basename(fields[5]))  # noqa: PTH119
    return starts, ends, names


def _follows_call(pid: int, address: int) -> bool:
    """Return whether a call instruction ends at an address; on x86-64 only, elsewhere every address counts."""
    if _NAMES is not _X86_64:
        return True
    before = _memory(pid, address - 7, 7)
    if len(before) < 7:
        return False
    direct = before[2] == 0xE8
    return direct or any(before[n] == 0xFF and before[n + 1] & 0x38 == 0x10 for n in (5, 4, 3, 1, 0))
