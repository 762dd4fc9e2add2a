"""Read what a shared library asks of the dynamic linker, without loading it.

The layout is that of elf(5) for 64-bit files in this machine's byte order; torch has no others.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29
_SEGMENT, _ENTRY = struct.Struct("=IIQQQQQQ"), struct.Struct("=qQ")


class Dynamic(NamedTuple):
    """A library's dynamic section."""

    needed: tuple[str, ...]
    """Names of the libraries that it loads: libnccl.so.2."""
    rpath: tuple[str, ...]
    """Folders searched before LD_LIBRARY_PATH (DT_RPATH, which does not count beside DT_RUNPATH)."""
    runpath: tuple[str, ...]
    """Folders searched after LD_LIBRARY_PATH (DT_RUNPATH)."""
    names: bytes
    """The names of its symbols, each between zero bytes."""


def dynamic(library: Path) -> Dynamic | None:
    """Return a library's dynamic section, None if the file is not such a library or cannot be read."""
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _dynamic(content, str(library.parent))
    except (OSError, ValueError, KeyError, OverflowError, StopIteration, struct.error):
        return None


def _dynamic(content: mmap.mmap, folder: str) -> Dynamic | None:
    if content[:5] != b"\x7fELF\x02":
        return None
    (table,) = struct.unpack_from("=Q", content, 32)
    size, count = struct.unpack_from("=HH", content, 54)
    segments = [_SEGMENT.unpack_from(content, table + n * size) for n in range(count)]
    tags = [tag for kind, _, at, *_ in segments if kind == _PT_DYNAMIC for tag in _tags(content, at)]
    values = dict(tags)
    start = next(
        at + values[_DT_STRTAB] - address
        for kind, _, at, address, _, length, *_ in segments
        if kind == _PT_LOAD and address <= values.get(_DT_STRTAB, -1) < address + length
    )
    names = content[start : start + values.get(_DT_STRSZ, 0)]

    def folders(tag: int) -> tuple[str, ...]:
        found = _text(names, values[tag]).split(":") if tag in values else []
        return tuple(re.sub(r"\$(ORIGIN|\{ORIGIN\})", lambda _: folder, path) for path in found if path)

    runpath = folders(_DT_RUNPATH)
    needed = tuple(_text(names, value) for tag, value in tags if tag == _DT_NEEDED)
    return Dynamic(needed, () if runpath else folders(_DT_RPATH), runpath, names)


def _tags(content: mmap.mmap, at: int) -> Iterator[tuple[int, int]]:
    while True:
        tag, value = _ENTRY.unpack_from(content, at)
        if tag == 0:
            return
        yield tag, value
        at += _ENTRY.size


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode("utf-8", "replace")
