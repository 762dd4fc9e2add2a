"""The form of a frame, which sealed and open ones share, and the error where the other side keeps to none."""

from __future__ import annotations

import struct

MAGIC = b"DCK1"


HEADER = struct.Struct("!4sI")


class ProtocolError(Exception):
    """The other side does not speak our protocol; the message says what it said instead."""
