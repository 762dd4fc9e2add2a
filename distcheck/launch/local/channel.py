"""The socket between distcheck and a rank: MessagePack in the frames of the roll call.

It is blocking on the rank's side.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from distcheck.collectives.plan import RankMessage, Task
from distcheck.facts.placement import Placement
from distcheck.rollcall.wire import HEADER, ProtocolError, frame

if TYPE_CHECKING:
    import asyncio


class Born(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process has started."""

    pid: int


class Imported(msgspec.Struct, frozen=True, tag_field="said"):
    """torch is imported, or `error` says why it is not, or why the ranks could not be forked."""

    seconds: float
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag_field="said"):
    """A rank's process has ended: its exit code, negative for a signal as in subprocess."""

    index: int
    code: int
    round: int = 0
    """The round of the process: each round has its own processes."""


class Spec(msgspec.Struct, frozen=True):
    """What the fork server forks; a channel for each rank comes with it."""

    placements: tuple[Placement, ...]
    training: bool
    """Whether the ranks will take training steps."""
    inherit: bool
    """True if this process already is the rank, so its environment stays unchanged."""


class Again(msgspec.Struct, frozen=True):
    """Fork the ranks again for another round, with new channels, and kill the last round's."""

    round: int


Message = RankMessage | Born | Imported | Exited

_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_specs = msgspec.msgpack.Decoder(Spec)
_wishes = msgspec.msgpack.Decoder(Again)
_tasks = msgspec.msgpack.Decoder(Task)
_MOST_AT_ONCE = 200
"""Descriptors in one message; the kernel takes 253 (SCM_MAX_FD)."""


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

    def hear_spec(self) -> tuple[Spec, tuple[int, ...]] | None:
        """Return what to fork and the channels; None if distcheck is gone."""
        body = self._message()
        spec = _specs.decode(body) if body else None
        return None if spec is None else (spec, self._channels(len(spec.placements)))

    def hear_again(self, ranks: int) -> tuple[Again, tuple[int, ...]] | None:
        """Return the request for another round and its channels; None if distcheck is gone."""
        body = self._message()
        return (_wishes.decode(body), self._channels(ranks)) if body else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def wait_for_task(self) -> Task | None:
        """Return the task when it comes; None if distcheck is gone."""
        body = self._message()
        return _tasks.decode(body) if body else None

    def _message(self) -> bytes:
        """Return a message's body, empty if distcheck is gone."""
        header = self._receive(HEADER.size)
        return self._receive(HEADER.unpack(header)[1]) if header else b""

    def _channels(self, number: int) -> tuple[int, ...]:
        """Return descriptors that follow a message."""
        found: list[int] = []
        while len(found) < number:
            byte, channels, _, _ = socket.recv_fds(self._socket, 1, _MOST_AT_ONCE)
            if not byte:
                break
            found += channels
        return tuple(found)

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
    from distcheck.rollcall import framing  # the fork server starts without asyncio and the words of the roll call

    try:
        return await framing.read(reader, _messages)
    except (ProtocolError, OSError) as error:
        raise EOFError from error


def ask(control: socket.socket, wish: Spec | Again, channels: Sequence[int]) -> None:
    """Send the fork server a wish and the ranks' ends of their channels; raises OSError if it is gone."""
    control.sendall(frame(msgspec.msgpack.encode(wish)))
    for first in range(0, len(channels), _MOST_AT_ONCE):
        socket.send_fds(control, [b"."], channels[first : first + _MOST_AT_ONCE])


def encode_task(task: Task) -> bytes:
    """Return a task as a message for the rank's end."""
    return frame(msgspec.msgpack.encode(task))
