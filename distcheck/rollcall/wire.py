"""The frame header, shared by sealed and plain frames, and the error for anything else."""

from __future__ import annotations

import struct

MAGIC = b"DCK1"


HEADER = struct.Struct("!4sI")


class ProtocolError(Exception):
    """The other side does not follow the protocol; the message says what it sent instead."""
