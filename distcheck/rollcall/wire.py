"""The frame that every socket between distcheck's processes carries, and the error for anything else."""

from __future__ import annotations

import struct

MAGIC = b"DCK1"
HEADER = struct.Struct("!4sI")


def frame(body: bytes) -> bytes:
    """Return a body with its header: magic and length."""
    return HEADER.pack(MAGIC, len(body)) + body


class ProtocolError(Exception):
    """The other side does not follow the protocol; the message says what it sent instead."""
