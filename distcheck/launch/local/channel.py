"""The socket between distcheck and a rank: MessagePack in the frames of the roll call.

It is blocking on the rank's side.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import msgspec

from distcheck.collectives.plan import RankMessage, Task
from distcheck.rollcall import framing
from distcheck.rollcall.wire import HEADER, ProtocolError, frame


class Born(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process has started: its pid and its variables."""

    pid: int
    environment: dict[str, str]


class Imported(msgspec.Struct, frozen=True, tag_field="said"):
    """torch is imported, or the import failed with `error`."""

    seconds: float
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process has ended: its exit code, negative for a signal as in subprocess."""

    index: int
    code: int
    round: int = 0
    """The round of the process: each round has its own processes."""


class Again(msgspec.Struct, frozen=True):
    """Fork the ranks again for another round, with new channels, and kill the last round's."""

    round: int


Message = RankMessage | Born | Imported | Exited

_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_wishes = msgspec.msgpack.Decoder(Again)
_tasks = msgspec.msgpack.Decoder(Task)


class RankEnd:
    """A rank's end of the channel."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()

    def tell(self, message: Message) -> None:
        """Send a message; any thread may call it."""
        body = msgspec.msgpack.encode(message)
        with self._lock:
            self._socket.sendall(frame(body))

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def hear_again(self, most: int) -> tuple[Again, list[int]] | None:
        """Return the request for another round and its channels; None if distcheck is gone."""
        body, channels, _, _ = socket.recv_fds(self._socket, 4096, most)
        return (_wishes.decode(body), list(channels)) if body else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def wait_for_task(self) -> Task | None:
        """Return the task when it comes; None if distcheck is gone."""
        header = self._receive(HEADER.size)
        return _tasks.decode(self._receive(HEADER.unpack(header)[1])) if header else None

    def _receive(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                return b""
            parts += part
        return parts


async def read(reader: asyncio.StreamReader) -> Message:
    """Read one message on distcheck's side.

    Raises:
        EOFError: the rank's end is closed, or sent an invalid message.
    """
    try:
        return await framing.read(reader, _messages)
    except (ProtocolError, OSError) as error:
        raise EOFError from error


def ask_again(control: socket.socket, number: int, channels: list[int]) -> None:
    """Ask the fork server for another round; raises OSError if it is gone."""
    socket.send_fds(control, [msgspec.msgpack.encode(Again(number))], channels)


def encode_task(task: Task) -> bytes:
    """Return a task as a message for the rank's end."""
    return frame(msgspec.msgpack.encode(task))
