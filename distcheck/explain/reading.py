"""Opens logs: files, directories of them, standard input, plain or compressed; yields pieces of whole lines."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import importlib
import io
import lzma
import os
import select
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from distcheck.facts.errors import UsageError
from distcheck.facts.quantities import count

CHUNK_BYTES = 1 << 20
_MOST_FILES = 10_000
_WRITER_SECONDS = 10
STANDARD_INPUT = Path("-")
_OF_DOCKER = b'{"log":"'
_BINARY = (
    ".pt",
    ".pth",
    ".safetensors",
    ".bin",
    ".npy",
    ".npz",
    ".pkl",
    ".pickle",
    ".so",
    ".zip",
    ".tar",
    ".whl",
    ".png",
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMPRESSED: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
"""What opens a file, by its first bytes."""


class Log(NamedTuple):
    """A log and its name in the answer."""

    path: Path
    name: str
    given: bool = True
    """False for a file that was found in a directory."""


class _Entry(msgspec.Struct):
    """A line in a file of Docker's json-file driver.

    Source: daemon/logger/jsonfilelog/jsonlog/jsonlog.go of moby.
    """

    log: str
    time: str = ""


class Piece(NamedTuple):
    """Whole lines of a log; a line longer than a piece is cut."""

    first_line: int
    data: bytes


def logs(paths: Sequence[Path], unread: list[str]) -> list[Log]:
    """Return the logs that files and directories name; those of a directory in order of their paths.

    Of a directory with too many files, a line about the remaining ones is added to `unread`.

    Raises:
        UsageError: a path does not exist, or a directory holds no log.
    """
    found: list[Log] = []
    for path in paths:
        inside = _inside(path)
        if inside is None:
            found.append(Log(path, "standard input" if path == STANDARD_INPUT else str(path)))
            continue
        if not inside:
            raise UsageError(f"--log {path}: the directory has no log files")
        found += [Log(p, str(p), given=False) for p in inside[:_MOST_FILES]]
        if len(inside) > _MOST_FILES:
            more = count(len(inside) - _MOST_FILES, "more file")
            unread.append(f"{path}: {more}, from {inside[_MOST_FILES].name} on")
    return found


def _inside(path: Path) -> list[Path] | None:
    """Return the files in a directory that may be logs; None if it is no directory."""
    try:
        if path == STANDARD_INPUT or not path.is_dir():
            return None
        return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.endswith(_BINARY))
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}") from None


def pieces(log: Log, unread: list[str]) -> Iterator[Piece]:
    """Yield a log in pieces of whole lines.

    Of a file that was found in a directory and cannot be read (to its end), the reason is added to `unread`.

    Raises:
        UsageError: a log that the user named cannot be opened, read or decompressed.
    """
    try:
        with closing(_opened(log.path)) as file:
            for piece in whole_lines(file):
                of_docker = piece.data.startswith(_OF_DOCKER)
                yield piece._replace(data=_as_docker_shows(piece.data)) if of_docker else piece
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = f"{log.path}: {getattr(error, 'strerror', None) or error}"
        if log.given:
            raise UsageError(f"--log {reason}") from None
        unread.append(reason)


def whole_lines(file: BinaryIO) -> Iterator[Piece]:
    """Yield what a file holds, cut at the ends of lines."""
    whole, rest, number = b"", b"", 1
    while chunk := file.read(CHUNK_BYTES):
        if whole:
            yield Piece(number, whole)
            number += whole.count(b"\n")
        head, newline, rest = (rest + chunk).rpartition(b"\n")
        whole = head + newline
        if len(rest) >= CHUNK_BYTES:  # one line without end: read it piece by piece
            whole, rest = whole + rest, b""
    if whole or rest:
        yield Piece(number, whole + rest)


def _as_docker_shows(data: bytes) -> bytes:
    """Return lines of Docker's json-file driver as ``docker logs --timestamps`` shows them, others as they are."""
    shown, decode = [], msgspec.json.Decoder(_Entry).decode
    for line in data.split(b"\n"):
        try:
            entry = decode(line)
            shown.append(f"{entry.time} {entry.log.rstrip()}".replace("\n", " ").encode())
        except ValueError:
            shown.append(line)
    return b"\n".join(shown)


def _opened(path: Path) -> BinaryIO:
    """Open a log, decompressed if it begins as a compressed file does.

    Raises:
        OSError: it cannot be opened, or is compressed with zstd and this Python (before 3.14) cannot read that.
    """
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise OSError("standard input is closed")
        return sys.stdin.buffer
    if not path.is_file() and not path.is_fifo() and not path.is_char_device() and path.exists() and path.is_dir():
        raise IsADirectoryError(21, "Is a directory")
    if path.is_fifo():
        return io.BufferedReader(_Pipe(path))
    if path.is_char_device():
        return path.open("rb")
    with path.open("rb") as file:
        magic = file.read(6)
    if opener := next((opener for first, opener in _COMPRESSED.items() if magic.startswith(first)), None):
        return cast("BinaryIO", opener(path))
    if magic.startswith(_UTF_16):  # what PowerShell writes
        return cast("BinaryIO", codecs.EncodedFile(path.open("rb"), "utf-8", "utf-16", "replace"))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            zstd: Any = importlib.import_module("compression.zstd")
        except ImportError:
            raise OSError(f"this Python cannot read zstd; use `zstdcat {path} | ... --log -`") from None
        return cast("BinaryIO", zstd.open(path))
    return path.open("rb")


class _Pipe(io.RawIOBase):
    """A named pipe. Opening it waits for nobody; reading waits as long as a writer has it open, else 10 s for one."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            came = self._poller.poll(_WRITER_SECONDS * 1000)
            try:
                data = os.read(self._descriptor, len(buffer))
            except BlockingIOError:  # a writer has it open and writes nothing yet
                continue
            if not data and not came:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"no program writes to this pipe (waited {_WRITER_SECONDS} s); give a file"
                )
            buffer[: len(data)] = data
            return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
