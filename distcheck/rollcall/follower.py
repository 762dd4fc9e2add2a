"""A follower as the leader sees it: its report, its connection, and the messages that it sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from distcheck.rollcall import connection
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import FromFollower, Hello, Report, StoreAt, Word
from distcheck.rollcall.wire import ProtocolError

if TYPE_CHECKING:
    from distcheck.rollcall.seal import Seal

_MOST_WORDS = 64
"""The most unread messages of a follower, which sends only a handful; a flood ends the connection."""


class Follower:
    """A process that was admitted and has reported."""

    def __init__(
        self, hello: Hello, report: Report, transport: asyncio.Transport, seals: tuple[Seal, Seal] | None = None
    ) -> None:
        self.uid = hello.uid
        self.ranks = frozenset(hello.ranks)
        now = asyncio.get_running_loop().time()
        self.arrived_at = now - hello.waited_seconds
        """The time of its first attempt: what it then waited for the leader is not its own delay."""
        self.leaves_at = now + hello.seconds_left
        self.heard_at = now
        """When it sent its last report."""
        self.report = report
        self._transport = transport
        self._says_by = seals[1] if seals else None
        self._words: asyncio.Queue[FromFollower | None] = asyncio.Queue()
        """Its messages since then; None when it is gone."""
        self.ready = asyncio.Event()
        """Set when its torch is imported, or when it is gone."""
        self.left = asyncio.Event()
        """Set when it is gone."""

    @property
    def gone(self) -> bool:
        """Whether its connection is closed."""
        return self.left.is_set()

    @property
    def address(self) -> str:
        """Its address on this connection."""
        return connection.plain_address(self._transport.get_extra_info("peername")[0])

    @property
    def met_at(self) -> str:
        """Our address on this connection."""
        return connection.plain_address(self._transport.get_extra_info("sockname")[0])

    def say(self, word: Word) -> None:
        """Send a message; nothing is sent to a follower that is gone."""
        self.send(encode(word))

    def send(self, frame: bytes) -> None:
        """Send an encoded message."""
        if not self.gone:
            self._transport.write(frame if self._says_by is None else self._says_by.close(frame))

    async def hear(self) -> FromFollower | None:
        """Return its next message; None if it is gone and left no more."""
        return None if self.gone and self._words.empty() else await self._words.get()

    def take(self, word: FromFollower) -> None:
        """Keep a message until `hear` returns it.

        Raises:
            ProtocolError: too many messages are unread.
        """
        if self._words.qsize() >= _MOST_WORDS:
            raise ProtocolError("too many unexpected messages")
        if not isinstance(word, StoreAt):  # its report is still to come
            self.heard_at = asyncio.get_running_loop().time()
        self._words.put_nowait(word)

    def leave(self) -> None:
        """Note that its connection is closed."""
        self.left.set()
        self.ready.set()
        self._words.put_nowait(None)


def with_clock(report: Report, welcomed: float, heard: float) -> Report:
    """Return a report with the offset of its clock; it was sent between the two times of ours.

    The offset is exact if the report took half of that time; its error is the other half.
    """
    sent = report.clock_seconds
    if sent is None:
        return report
    process = msgspec.structs.replace(
        report.process,
        clock_offset_seconds=round(sent - (welcomed + heard) / 2, 3),
        clock_error_seconds=round(abs(heard - welcomed) / 2, 3),
    )
    return msgspec.structs.replace(report, process=process)


def is_of(report: Report, hello: Hello) -> bool:
    """Whether a report is consistent: one process, its node, and the ranks of its Hello."""
    uid = report.process.uid
    return (
        uid == hello.uid
        and report.process.node == report.node.key
        and all(door.uid == uid for door in report.peer_doors)
        and all(r.process == uid for r in report.ranks)
        and {r.placement.rank for r in report.ranks} - {None} == set(hello.ranks)
    )
