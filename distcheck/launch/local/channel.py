"""The socket between distcheck and one of its ranks: length-prefixed MessagePack, blocking on the rank's side."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import msgspec

from distcheck.collectives.plan import RankMessage, Task

_LENGTH = struct.Struct("!I")
_LONGEST_BYTES = 1 << 24


class Born(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process runs: its pid and the variables that it sees."""

    pid: int
    environment: dict[str, str]


class Imported(msgspec.Struct, frozen=True, tag_field="said"):
    """torch is imported; `error` says why it could not be."""

    seconds: float
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process has ended: its exit code, negative for a signal as subprocess has it."""

    index: int
    code: int
    round: int = 0
    """Which of the rank's processes it was: each round has its own."""


class Again(msgspec.Struct, frozen=True):
    """Fork the ranks once more, for another round; their channels come with it, and the last round's are killed."""

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
        """Send a message; from any thread."""
        body = msgspec.msgpack.encode(message)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def hear_again(self, most: int) -> tuple[Again, list[int]] | None:
        """Return the wish for another round with the ranks' channels; None when distcheck has gone."""
        body, channels, _, _ = socket.recv_fds(self._socket, 4096, most)
        return (_wishes.decode(body), list(channels)) if body else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def wait_for_task(self) -> Task | None:
        """Wait for the task; None when distcheck has gone."""
        header = self._receive(_LENGTH.size)
        return _tasks.decode(self._receive(_LENGTH.unpack(header)[0])) if header else None

    def _receive(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                return b""
            parts += part
        return parts


async def read(reader: asyncio.StreamReader) -> Message:
    """Read one message on distcheck's side; EOFError when the rank's end is closed or says what is no message."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _LONGEST_BYTES:
            raise EOFError(f"a message of {length} bytes")
        return _messages.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise EOFError from error


def ask_again(control: socket.socket, number: int, channels: list[int]) -> None:
    """Ask the program that forks the ranks for another round; OSError when it is gone."""
    socket.send_fds(control, [msgspec.msgpack.encode(Again(number))], channels)


def encode_task(task: Task) -> bytes:
    """Return a task as the rank's end reads it."""
    body = msgspec.msgpack.encode(task)
    return _LENGTH.pack(len(body)) + body
