"""The host's side of the roll call: doors, guests, and words to all of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from typing import TypeVar

from distcheck.probe import network
from distcheck.rollcall import protocol
from distcheck.rollcall.protocol import (
    FromGuest,
    Hello,
    NotYet,
    ProtocolError,
    Refused,
    Report,
    Trouble,
    Welcome,
    Word,
    encode,
    guest_decoder,
    hello_decoder,
)

_HELLO_SECONDS = 5.0
_T = TypeVar("_T", bound=Word)


class Guest:
    """One process that came in and reported."""

    def __init__(self, hello: Hello, report: Report, writer: asyncio.StreamWriter) -> None:
        self.uid = hello.uid
        self.ranks = frozenset(hello.ranks)
        self.leaves_at = asyncio.get_running_loop().time() + hello.seconds_left
        self.report = report
        self.writer = writer
        self.words: asyncio.Queue[FromGuest | None] = asyncio.Queue()
        """What it said since; None when it is gone."""
        self.gone = False

    def say(self, word: Word) -> None:
        """Send a word; a guest that is gone does not hear it, which `words` tells."""
        if not self.gone:
            self.writer.write(encode(word))


class Server:
    """The roll call's host: accepts guests until its doors close and passes words to and fro."""

    def __init__(self, *, run: str, uid: str, job: str, master: str, ranks: Iterable[int], world_size: int) -> None:
        self.run, self.uid, self.master = run, uid, master
        self.job = job
        self.world_size = world_size
        self.own_ranks = frozenset(ranks)
        self.guests: dict[str, Guest] = {}
        self.admit_strangers = False
        """Whether guests with another MASTER_ADDR:MASTER_PORT come in to fill a gap in the roll."""
        self.on_trouble: Callable[[str], None] = lambda _reason: None
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        """Let guests in through a listening socket."""
        protocol.prepare(sock)
        self._servers.append(await asyncio.start_server(self._welcome, sock=sock))

    async def open_side_door(self) -> int | None:
        """Listen on the first side port that is free; None when all are taken."""
        for port in protocol.side_ports(self.job):
            try:
                await self.open(network.listen(port))
            except OSError as error:
                if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    raise
                continue
            return port
        return None

    @property
    def present(self) -> frozenset[int]:
        """The ranks of whom somebody spoke."""
        return self.own_ranks.union(*(g.ranks for g in self.guests.values()))

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of whom nobody spoke."""
        present = self.present
        return tuple(n for n in range(self.world_size) if n not in present)

    async def wait_for_all(self, seconds: float) -> bool:
        """Wait until every rank of the world is there; False when the time is over first."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_present(), seconds)
        return not self.missing

    async def _all_present(self) -> None:
        while self.missing:
            self._changed.clear()
            await self._changed.wait()

    def say_to_all(self, word: Word) -> None:
        """Send a word to every guest that is still there."""
        for guest in self.guests.values():
            guest.say(word)

    async def hear_all(self, kind: type[_T], seconds: float, uids: Iterable[str] | None = None) -> dict[str, _T]:
        """Wait for one word of this kind from every guest (or those named); silent and gone guests are left out."""
        wanted = [self.guests[uid] for uid in (self.guests if uids is None else uids)]
        heard: dict[str, _T] = {}
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def hear(guest: Guest) -> None:
            while not guest.gone or not guest.words.empty():
                word = await asyncio.wait_for(guest.words.get(), max(0.0, until - loop.time()))
                if isinstance(word, kind):
                    heard[guest.uid] = word
                    return
                if word is None:
                    return

        await asyncio.gather(*(hear(g) for g in wanted), return_exceptions=True)
        return heard

    async def close_doors(self) -> None:
        """Stop listening: whoever comes now finds the ports as free as they were."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self) -> None:
        """Stop listening and let everybody go."""
        await self.close_doors()
        for guest in self.guests.values():
            guest.writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; whatever a stranger sends ends its own connection and nothing else."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        guest: Guest | None = None
        try:
            guest = await asyncio.wait_for(self._admit(reader, writer), _HELLO_SECONDS * 2)
            if guest is not None:
                await self._listen_to(guest, reader)
        except (ProtocolError, EOFError, OSError, asyncio.TimeoutError, asyncio.CancelledError):
            # Cancelled is how `close` ends this; asyncio's streams would print a traceback for it.
            pass
        finally:
            if guest is not None:
                guest.gone = True
                guest.words.put_nowait(None)
                self.on_trouble(f"lost the connection to {guest.report.node.name}")
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Guest | None:
        hello = await asyncio.wait_for(protocol.read(reader, hello_decoder, protocol.HELLO_LIMIT_BYTES), _HELLO_SECONDS)
        answer = self._answer(hello)
        writer.write(encode(answer))
        await writer.drain()
        if not isinstance(answer, Welcome):
            return None
        report = await protocol.read(reader, guest_decoder)
        if not isinstance(report, Report) or report.process.uid != hello.uid or hello.uid in self.guests:
            raise ProtocolError("not the report of the guest that was welcomed")
        guest = self.guests[hello.uid] = Guest(hello, report, writer)
        self._changed.set()
        return guest

    def _answer(self, hello: Hello) -> Welcome | NotYet | Refused:
        if hello.job != protocol.public_key(self.job):
            return Refused(hello.nonce, "this is the roll call of another job")
        if hello.master != self.master and not (
            self.admit_strangers and hello.world_size == self.world_size and set(hello.ranks) & set(self.missing)
        ):
            return NotYet(hello.nonce, self.master)
        return Welcome(hello.nonce, self.run, self.uid)

    async def _listen_to(self, guest: Guest, reader: asyncio.StreamReader) -> None:
        while True:
            word = await protocol.read(reader, guest_decoder)
            if isinstance(word, Trouble):
                self.on_trouble(word.reason)
            else:
                guest.words.put_nowait(word)
