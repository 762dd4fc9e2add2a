"""The leader's side: listen, admit followers, and exchange messages with them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from distcheck.probe import network
from distcheck.rollcall import connection, identity
from distcheck.rollcall.follower import Follower
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Elsewhere, Hello, NotYet, Refused, Welcome, Word
from distcheck.rollcall.sharing import Sharing
from distcheck.rollcall.visit import Visit
from distcheck.rollcall.wire import ProtocolError

_BACKLOG = 1 << 16
"""The kernel takes no more than net.core.somaxconn; who does not fit tries again a second later."""
_TO_BE_TOLD = 16
"""Connections beyond the limit, so that who comes too late has the time to say Hello and is told why."""
_MOST_BYTES, _MOST_BYTES_A_RANK = 1 << 28, 1 << 18
"""The most bytes received from all followers in a run. A report has about 2 kB per rank."""
_MOST_RANKS = 1 << 16
_MORE_FOLLOWERS = 64
"""Processes admitted beyond one per rank, because two may claim the same rank."""
_REPORT_PATIENCE_SECONDS = 2.5
"""How long a process that was admitted in the last moment is waited for: it tries MASTER_PORT for two seconds first."""
_ALL_CAME_SECONDS = 1.0
"""How long missing ranks are waited for after as many ranks came as there are: some then came twice, or too high."""
_REFUSED_SECONDS = 3.0
"""How long missing ranks are waited for after a process whose COMMAND will not start: they learn of it only here."""
_T = TypeVar("_T", bound=Word)


class Server:
    """The leader's listener: it admits followers and exchanges messages with them."""

    def __init__(
        self,
        *,
        run: str,
        uid: str,
        job: str,
        master: str,
        ranks: Iterable[int],
        world_size: int,
        secret: bytes | None = None,
    ) -> None:
        self.run, self.uid, self.master = run, uid, master
        self.job = job
        self._secret = secret
        self.world_size = world_size
        self.followers: dict[str, Follower] = {}
        self.packages = ""
        """The hash of the distributions installed here, for followers to compare with theirs."""
        self.admit_strangers = False
        """Whether followers with another MASTER_ADDR:MASTER_PORT are admitted for missing ranks."""
        self.leader_at = ""
        """The leader's address, where this server only redirects to it and admits no follower."""
        self.of_node = False
        """Whether only processes of this node that did not find rank 0 either are admitted."""
        self.most_connections = 4096
        """Beyond that no follower is admitted, and soon the oldest connection before its report is closed: the leader
        must be able to open files of its own."""
        self.on_trouble: Callable[[str], None] = lambda _reason: None
        """Called with the reason when a follower is in trouble, or lost."""
        self.accepted_at_once = 256
        """asyncio accepts so many before it reads from any connection: many delay who came first, and take files."""
        self.opened_at = asyncio.get_running_loop().time()
        self._rank = min(own := frozenset(ranks), default=0)
        self.elsewhere: dict[int, str] = {}
        """Ranks of this job that connected but look for another MASTER_ADDR:MASTER_PORT, which is the value."""
        self._present: set[int] = set()
        self._note_present(own)
        self._came = len(own)
        """How many ranks came, those counted that came twice or are beyond the world."""
        self._all_came_at = float("inf")
        self._leaves_at = float("inf")
        self._closes_at = float("inf")
        self._open = True
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._visits: set[Visit] = set()
        self.share = Sharing().share
        self._unanswered: dict[Visit, None] = {}
        """Those without a follower yet, oldest first."""
        self._bytes_left = _MOST_BYTES + _MOST_BYTES_A_RANK * min(world_size, _MOST_RANKS)

    async def open(self, sock: socket.socket) -> None:
        """Admit followers through a listening socket."""
        connection.prepare(sock)
        loop = asyncio.get_running_loop()
        backlog = self.accepted_at_once
        self._servers.append(await loop.create_server(lambda: Visit(self), sock=sock, backlog=backlog))
        sock.listen(_BACKLOG)

    async def open_side_door(self, most: int | None = None) -> int | None:
        """Listen on the first free side port of `most` and return it; None if none is free."""
        for port in identity.side_ports(self.job)[:most]:
            with contextlib.suppress(OSError):
                await self.open(network.listen(port))
                return port
        return None

    @property
    def complete(self) -> bool:
        """Whether a process has reported for every rank of the world."""
        return len(self._present) >= self.world_size

    @property
    def _full(self) -> bool:
        """Whether as many processes were admitted as this one may open files for."""
        return len(self._visits) - len(self._unanswered) >= self.most_connections

    @property
    def present(self) -> int:
        """How many ranks of the world a process has reported for."""
        return len(self._present)

    def missing(self, most: int) -> tuple[int, ...]:
        """Return the first `most` ranks that no process has reported."""
        return tuple(islice((n for n in range(self.world_size) if n not in self._present), most))

    async def wait_for_all(self, seconds: float, reserve: float = 0.0, ranks: int | None = None) -> bool:
        """Wait until every rank is present, or this many `ranks`; False if time runs out.

        A process that was admitted and has not reported is waited for a moment longer. The wait ends soon after as many
        ranks came as there are, at the latest `reserve` seconds before the first follower's own timeout, and at
        `close_roll`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not (enough := len(self._present) >= (self.world_size if ranks is None else ranks)):
            # Who was admitted and has yet to report would take us for lost.
            awaited = loop.time() >= until and any(visit.owes_a_report for visit in self._visits)
            end = min(until + awaited * _REPORT_PATIENCE_SECONDS, self._all_came_at + _ALL_CAME_SECONDS)
            left = min(end, self._closes_at, self._leaves_at - reserve) - loop.time()
            if left <= 0:
                break
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await connection.within(self._changed.wait(), left)
        return enough

    def close_roll(self) -> None:
        """Stop waiting: processes that are missing now will not come."""
        self._closes_at = asyncio.get_running_loop().time()
        self._changed.set()

    def forget_restarted(self) -> None:
        """Forget followers that left and whose ranks came again in another process: these were started anew."""
        gone = {uid for uid, follower in self.followers.items() if follower.gone and follower.ranks}
        here = {rank for uid, follower in self.followers.items() if uid not in gone for rank in follower.ranks}
        for uid in gone:
            if here.issuperset(self.followers[uid].ranks):
                del self.followers[uid]

    def say_to_all(self, word: Word, uids: Iterable[str] | None = None) -> None:
        """Send a message to every follower that is still connected, or to those in `uids`."""
        frame = encode(word)
        for uid in self.followers if uids is None else uids:
            self.followers[uid].send(frame)

    async def hear_all(self, kind: type[_T], seconds: float, uids: Iterable[str] | None = None) -> dict[str, _T]:
        """Return one message of this kind per follower; silent and gone ones are left out."""
        wanted = [self.followers[uid] for uid in (self.followers if uids is None else uids)]
        heard: dict[str, _T] = {}

        async def hear(follower: Follower) -> None:
            while (word := await follower.hear()) is not None:
                if isinstance(word, kind):
                    heard[follower.uid] = word
                    return

        if wanted:
            hearing = [asyncio.ensure_future(hear(g)) for g in wanted]
            _, silent = await asyncio.wait(hearing, timeout=max(0.0, seconds))
            for task in silent:
                task.cancel()
            await asyncio.gather(*silent, return_exceptions=True)
        return heard

    async def wait_until_gone(self, seconds: float, uids: Iterable[str]) -> None:
        """Wait until followers have closed their connections: each has the last message then."""
        leaving = asyncio.gather(*(self.followers[uid].left.wait() for uid in uids))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(leaving, seconds)

    async def close_doors(self) -> None:
        """Stop listening, free the ports, and drop connections before their handshake."""
        self._open = False
        for server in self._servers:
            server.close()
        self._servers.clear()
        for visit in tuple(self._unanswered):
            visit.close()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self.close_doors()
        for visit in tuple(self._visits):
            visit.close()
        await asyncio.sleep(0)  # lets the loop close them

    def arrive(self, visit: Visit) -> None:
        """Queue a connection before its report; silent connections do not keep followers out."""
        if not self._open:
            visit.close()
            return
        self._visits.add(visit)
        self._unanswered[visit] = None
        oldest = next(iter(self._unanswered))
        if len(self._visits) > self.most_connections + _TO_BE_TOLD and oldest is not visit:
            self.leave(oldest, 0)
            oldest.close()

    def trust(self, visit: Visit) -> None:
        """Take a connection out of that queue: a crowd must not push out who was admitted and has yet to report."""
        self._unanswered.pop(visit, None)

    def leave(self, visit: Visit, unused_bytes: int) -> None:
        """Forget a connection that is closed."""
        self._visits.discard(visit)
        self._unanswered.pop(visit, None)
        self._bytes_left += unused_bytes
        self._count(-visit.ranks)
        self._changed.set()

    def expect(self, size: int) -> None:
        """Count a frame of this size against the byte limit of all followers together.

        Raises:
            ProtocolError: the limit is reached.
        """
        if size > self._bytes_left:
            raise ProtocolError("the byte limit of this run is used up")
        self._bytes_left -= size

    def admit(self, visit: Visit, follower: Follower) -> None:
        """Take a follower that has reported.

        Raises:
            ProtocolError: it is here already, or the roll call is closed.
        """
        if not self._open or follower.uid == self.uid or follower.uid in self.followers:
            raise ProtocolError("this process has joined already, or the roll call is closed")
        self._unanswered.pop(visit, None)
        self.followers[follower.uid] = follower
        self._leaves_at = min(self._leaves_at, follower.leaves_at)
        self._note_present(follower.ranks)
        self._count(len(follower.ranks))
        if (launch := follower.report.process.launch) is not None and launch.refused:  # this job will not start
            self._closes_at = min(self._closes_at, asyncio.get_running_loop().time() + _REFUSED_SECONDS)
        self._changed.set()

    def secret_for(self, hello: Hello) -> bytes | None:
        """Return the secret that a follower must prove to know; None without one, and if it is turned away anyway."""
        return self._secret if hello.job == identity.public_key(self.job) and not self._full else None

    def _count(self, ranks: int) -> None:
        """Count ranks that came, or whose process left."""
        before, self._came = self._came, self._came + ranks
        if before < self.world_size <= self._came:
            self._all_came_at = asyncio.get_running_loop().time()
        elif self._came < self.world_size:
            self._all_came_at = float("inf")

    def _note_present(self, ranks: Iterable[int]) -> None:
        self._present.update(n for n in ranks if 0 <= n < self.world_size)

    def answer(self, hello: Hello) -> Welcome | NotYet | Elsewhere | Refused:
        """Return the answer to a Hello."""
        if hello.job != identity.public_key(self.job):
            or_token = ", or its DISTCHECK_TOKEN differs" if self._secret is not None else ""
            return Refused(hello.nonce, f"this is the roll call of another job{or_token}")
        if len(self.followers) >= self.world_size + _MORE_FOLLOWERS:
            return Refused(hello.nonce, "more processes than ranks have joined already")
        if self._full:
            return Refused(hello.nonce, "rank 0's process may not open more files", full=True)
        if hello.uid in self.followers or not self._open:
            return Refused(hello.nonce, "this process has joined already, or the roll call is closed")
        if self.leader_at:  # this address is not the leader's, so only the same spelling counts
            alike = hello.master == self.master
            return Elsewhere(hello.nonce, self.leader_at) if alike else NotYet(hello.nonce, self.master)
        # An address that led it here is this host's: torch would start at once, and two jobs that share host and port
        # conflict under any name.
        same_port = hello.master.rpartition(":")[2] == self.master.rpartition(":")[2]
        alike = hello.master == self.master or (same_port and hello.found == "master")
        if self.of_node and hello.found != "node":
            return NotYet(hello.nonce, self.master)
        if not alike and not (self.admit_strangers and hello.found != "node" and self._fits(hello)):
            self.elsewhere.update((n, hello.master) for n in hello.ranks if 0 <= n < self.world_size)
            return NotYet(hello.nonce, self.master)
        return Welcome(hello.nonce, self.run, self.uid, self.of_node, self._rank, self.packages)

    def _fits(self, hello: Hello) -> bool:
        """Whether a follower has a missing rank."""
        absent = (n for n in hello.ranks if 0 <= n < self.world_size and n not in self._present)
        return hello.world_size == self.world_size and any(True for _ in absent)
