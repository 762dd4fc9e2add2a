"""The variables that name a rank, as a process has them now.

/proc/PID/environ shows those with which it started. Ray's workers and scripts set RANK later, by ``os.environ``, and a
process that changes its title may overwrite what is shown. So libc's own list is read from its memory, which needs the
right to attach and stops nothing; of other variables nothing is kept.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from distcheck.probe import elf

_NAMES = frozenset(
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"]
)
_MOST, _LONGEST = 4096, 300


def live(process: Path) -> dict[str, str]:
    """Return those of these variables that a process has; `process` is its folder in /proc. Empty if unreadable."""
    try:
        memory = os.open(process / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        words = (os.pread(memory, _LONGEST, pointer) for pointer in _pointers(process, memory))
        pairs = (word.partition(b"\0")[0].decode("utf-8", "replace").partition("=") for word in words)
        return {name: value for name, _, value in pairs if name in _NAMES}
    except (OSError, OverflowError, struct.error):  # it goes on, and may have moved the list
        return {}
    finally:
        os.close(memory)


def _pointers(process: Path, memory: int) -> Iterator[int]:
    """Yield the addresses of a process's variables."""
    for start, file in _files(process):
        symbol = _environ(file, _version(file))
        if symbol is None:
            continue
        (first,) = struct.unpack("=Q", os.pread(memory, 8, symbol.value + (0 if symbol.absolute else start)))
        listed = os.pread(memory, 8 * _MOST, first) if first else b""
        for (pointer,) in struct.iter_unpack("=Q", listed[: len(listed) // 8 * 8]):
            if not pointer:
                return
            yield pointer


def _files(process: Path) -> Iterator[tuple[int, Path]]:
    """Yield where the program and libc begin in memory, and their files; the program's copy of the list goes before."""
    program = os.readlink(process / "exe")  # noqa: PTH115 no path here
    starts: dict[str, int] = {}
    for line in (process / "maps").read_text("utf-8", "replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 5:
            starts.setdefault(fields[5], int(fields[0].partition("-")[0], 16))
    if program in starts:
        yield starts[program], process / "exe"
    for path, start in starts.items():
        if os.path.basename(path).startswith(("libc.so", "libc-", "ld-musl")):  # noqa: PTH119
            yield start, process / "root" / path.lstrip("/")


def _version(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


_symbols: dict[tuple[int, ...], elf.Symbol | None] = {}


def _environ(file: Path, version: tuple[int, ...]) -> elf.Symbol | None:
    """Return libc's list in a file; that of each file is looked for once."""
    if version not in _symbols:
        _symbols[version] = elf.symbol(file, (b"environ", b"__environ"))
    return _symbols[version]
