"""Sends facts home on standard output, in short lines that survive mixed output.

Under srun and mpirun the standard output of many ranks is one stream, which tears lines of several kB (48 of 160 lines
of 6 kB under srun of Slurm 22.05, 34 of 160 under mpirun of Open MPI 4.1). A message is compressed and cut into frames.
Each frame is one line, written by one system call, with its sender, number and checksum.

All lines have the same length, and a whole number of them fills the 4096 bytes that Open MPI reads at once. So each of
its reads ends with a line, and no other output gets into the middle of one.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import zlib
from typing import NamedTuple

import msgspec

from distcheck.facts.hang import RunningJob
from distcheck.facts.job import Job
from distcheck.rollcall.protocol import Report

_MARK = "\x1eDCF1"
LINE_BYTES = 512
_CHUNK_BYTES = 345
"""460 characters of base64, which leaves room for the header."""
_FRAME = re.compile(
    rb"\x1eDCF1 ([0-9a-f]{8}) (\d{1,6}) (\d{1,6})/(\d{1,6}) ([0-9a-f]{8}) ([A-Za-z0-9+/]*={0,2}) *",
)
_LABEL = re.compile(rb"\[\d+,\d+\]<std(?:out|err)>:")
"""Open MPI puts it before each block that it reads, not before each line."""
_LARGEST_BYTES = 1 << 28


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """A probe has started. It is the first message; its fields are the same in all versions."""

    distcheck: str


class Collected(msgspec.Struct, frozen=True, tag="collected"):
    """A probe's own facts, before the roll call."""

    report: Report


class Concluded(msgspec.Struct, frozen=True, tag="concluded"):
    """The whole job, from the leader, or from a process that reached no other."""

    job: Job


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """The running jobs of a node."""

    jobs: tuple[RunningJob, ...]


Message = Arrived | Collected | Concluded | Seen
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(sender: str, number: int, message: Message) -> list[bytes]:
    """Return a message's frames, each a whole line; `sender` is eight hexadecimal digits."""
    body = zlib.compress(msgspec.msgpack.encode(message), 6)
    chunks = [body[i : i + _CHUNK_BYTES] for i in range(0, len(body), _CHUNK_BYTES)]
    return [
        (
            f"{_MARK} {sender} {number} {i}/{len(chunks)} {zlib.crc32(chunk):08x} ".encode() + base64.b64encode(chunk)
        ).ljust(LINE_BYTES - 1)
        + b"\n"
        for i, chunk in enumerate(chunks)
    ]


def write(fd: int, frames: list[bytes]) -> None:
    """Write frames, each whole by one system call; a closed pipe is not an error."""
    with contextlib.suppress(OSError):
        for frame in frames:
            rest = frame
            while rest:
                rest = rest[os.write(fd, rest) :]


class Line(NamedTuple):
    """A parsed line of a probe's standard output."""

    sender: str = ""
    message: Message | None = None
    """The message that this line completes."""
    unread: str = ""
    """Why a complete message could not be decoded: another version wrote it."""
    words: bytes = b""
    """Other output on the line, outside any frame."""


class Reader:
    """Assembles messages from lines."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], dict[int, bytes]] = {}

    def take(self, line: bytes) -> Line:
        """Parse one line, without its newline."""
        before, mark, rest = line.partition(_MARK.encode())
        if mark:
            line = before + mark + _LABEL.sub(b"", rest)
        found = _FRAME.search(line)
        if found is None:
            return Line(words=line)
        sender, number, index, total = found[1].decode(), int(found[2]), int(found[3]), int(found[4])
        words = line[: found.start()] + line[found.end() :]
        try:
            chunk = base64.b64decode(found[6], validate=True)
        except ValueError:
            chunk = b""
        if zlib.crc32(chunk) != int(found[5], 16) or index >= total:
            return Line(sender, words=words)
        parts = self._parts.setdefault((sender, number), {})
        parts[index] = chunk
        if len(parts) < total:
            return Line(sender, words=words)
        del self._parts[sender, number]
        message, unread = _decode(b"".join(parts[i] for i in sorted(parts)))
        return Line(sender, message, unread, words)


def _decode(body: bytes) -> tuple[Message | None, str]:
    try:
        inflated = zlib.decompressobj().decompress(body, _LARGEST_BYTES)
        return _messages.decode(inflated), ""
    except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        return None, str(error)
