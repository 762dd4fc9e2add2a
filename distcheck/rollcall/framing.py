"""The frames of the roll call: magic, length, MessagePack, compressed if large, and with a token a seal."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from distcheck.rollcall import protocol
from distcheck.rollcall.wire import HEADER, MAGIC, ProtocolError, frame

if TYPE_CHECKING:
    from distcheck.rollcall.protocol import Word
    from distcheck.rollcall.seal import Seal

_EVERY_MAGIC = b"DCK"
HELLO_LIMIT_BYTES = 64 * 1024
ANSWER_LIMIT_BYTES = 4096
FRAME_LIMIT_BYTES = 16 * 1024 * 1024
"""The report of a node with 8 ranks and 8 GPUs has about 15 kB."""
_LEAST_DEFLATED_BYTES = 1024
_DEFLATE_LEVEL = 1
"""The highest level saves another 7 % of a report and takes twice as long."""
_T = TypeVar("_T")


def encode(word: Word, seal: Seal | None = None, *, deflates: bool = False) -> bytes:
    """Return the frame of a message: magic, length, MessagePack and, with a token, its seal.

    With `deflates` a large message is compressed first.
    """
    body = msgspec.msgpack.encode(word)
    if deflates and len(body) > _LEAST_DEFLATED_BYTES:
        body = msgspec.msgpack.encode(protocol.Deflated(zlib.compress(body, _DEFLATE_LEVEL)))
    plain = frame(body)
    return plain if seal is None else seal.close(plain)


def inflate(data: bytes) -> bytes:
    """Return the message that `encode` compressed.

    Raises:
        ProtocolError: it is not compressed, or larger than a frame.
    """
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, FRAME_LIMIT_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"a message that cannot be decompressed: {error}") from None
    if not inflater.eof:
        raise ProtocolError(f"a compressed message that is cut, or of more than {FRAME_LIMIT_BYTES} bytes")
    return body


async def read(
    reader: asyncio.StreamReader,
    decoder: msgspec.msgpack.Decoder[_T],
    limit: int = FRAME_LIMIT_BYTES,
    *,
    seal: Seal | None = None,
) -> _T:
    """Read one frame and return its message.

    Args:
        reader: the connection.
        decoder: for the messages that the other side may send now.
        limit: the largest body that is accepted.
        seal: the other side's, with a token.

    Raises:
        ProtocolError: the bytes are not a frame, the frame is larger than `limit`, the decoder refuses it, or its seal
            is invalid.
        EOFError: the other side has closed.
        OSError: the connection broke.
    """
    body = await read_body(reader, limit)
    return decode(body if seal is None else seal.open(body), decoder)


async def read_body(reader: asyncio.StreamReader, limit: int) -> bytes:
    """Read one frame as `read` does, and return its body undecoded."""
    try:
        header = await reader.readexactly(HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError(banner(error.partial)) from None
        raise EOFError from None
    if not header.startswith(_EVERY_MAGIC):
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            header += await asyncio.wait_for(reader.read(200), 0.2)
        raise ProtocolError(banner(header))
    length = length_of(header, limit)
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise EOFError from None


def length_of(header: bytes, limit: int) -> int:
    """Return the length of the body that follows a header.

    Raises:
        ProtocolError: it is not distcheck's header, or the body is larger than `limit`.
    """
    magic, length = HEADER.unpack(header)
    if not magic.startswith(_EVERY_MAGIC):
        raise ProtocolError(banner(header))
    if magic != MAGIC:
        raise ProtocolError(f"another version of distcheck: its frames begin with {banner(magic)}, not {banner(MAGIC)}")
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes; the limit is {limit}")
    return int(length)


def decode(body: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    """Return the message in a frame's body.

    Raises:
        ProtocolError: the decoder refuses it.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame that this version cannot read: {error}") from None


def banner(raw: bytes) -> str:
    """Return another program's first bytes as printable text: one line, no control characters."""
    text = raw[:120].decode("latin-1")
    return "".join(c if c.isprintable() else " " for c in text).strip() or f"{len(raw)} unprintable bytes"
