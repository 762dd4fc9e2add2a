"""Read what a shared library or program asks of the dynamic linker, and its symbols, without loading it.

The layout is that of elf(5) for 64-bit files in this machine's byte order; torch has no others.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

_PT_LOAD, _PT_DYNAMIC = 1, 2
_ET_EXEC = 2
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 6, 10, 15, 29
_SEGMENT, _ENTRY, _SYMBOL = struct.Struct("=IIQQQQQQ"), struct.Struct("=qQ"), struct.Struct("=IBBHQQ")
T = TypeVar("T")


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


class Symbol(NamedTuple):
    """An address in a program or library."""

    value: int
    absolute: bool
    """Whether it does not depend on where the file was loaded."""


def dynamic(library: Path) -> Dynamic | None:
    """Return a library's dynamic section, None if the file is not such a library or cannot be read."""
    return _read(library, lambda content: _dynamic(content, str(library.parent)))


def symbol(program: Path, names: Collection[bytes]) -> Symbol | None:
    """Return the first symbol of these names that a program or library defines, None if it defines none."""
    return _read(program, lambda content: _symbol(content, names))


def _read(library: Path, read: Callable[[mmap.mmap], T]) -> T | None:
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return read(content) if content[:5] == b"\x7fELF\x02" else None
    except (OSError, ValueError, KeyError, OverflowError, StopIteration, struct.error):
        return None


class _Layout(NamedTuple):
    tags: list[tuple[int, int]]
    segments: list[tuple[int, ...]]

    def offset(self, address: int) -> int:
        """Return where in the file an address is."""
        return next(
            at + address - first
            for kind, _, at, first, _, length, *_ in self.segments
            if kind == _PT_LOAD and first <= address < first + length
        )


def _layout(content: mmap.mmap) -> _Layout:
    (table,) = struct.unpack_from("=Q", content, 32)
    size, count = struct.unpack_from("=HH", content, 54)
    segments = [_SEGMENT.unpack_from(content, table + n * size) for n in range(count)]
    return _Layout([tag for kind, _, at, *_ in segments if kind == _PT_DYNAMIC for tag in _tags(content, at)], segments)


def _symbol(content: mmap.mmap, names: Collection[bytes]) -> Symbol | None:
    layout = _layout(content)
    values = dict(layout.tags)
    table, texts = layout.offset(values[_DT_SYMTAB]), layout.offset(values[_DT_STRTAB])
    for at in range(table, texts, _SYMBOL.size):  # linkers put the names behind the table
        name, _, _, section, value, _ = _SYMBOL.unpack_from(content, at)
        if section and any(content[texts + name : texts + name + len(n) + 1] == n + b"\0" for n in names):
            (kind,) = struct.unpack_from("=H", content, 16)
            return Symbol(value, absolute=kind == _ET_EXEC)
    return None


def _dynamic(content: mmap.mmap, folder: str) -> Dynamic:
    layout = _layout(content)
    tags, values = layout.tags, dict(layout.tags)
    start = layout.offset(values.get(_DT_STRTAB, -1))
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
