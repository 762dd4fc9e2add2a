"""The follower's side: tries every endpoint until the leader answers; records the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from distcheck.facts.network import Attempt
from distcheck.rollcall import connection, identity
from distcheck.rollcall.handshake import Connection, Door, shake_hands
from distcheck.rollcall.protocol import Hello

_ANSWER_SECONDS = 3.0
_LEAST_ANSWER_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_LEAST_KNOCK_SECONDS = 0.05
_MASTER_PATIENCE_SECONDS = 2.0
"""How long only MASTER_PORT is tried, if it neither admits this process nor turns it away."""
_MOST_DOORS = 256
_LEAD_SECONDS = 1.0
"""Between two attempts at an endpoint where the leader only may be, and the longest time for one connection."""
_LEAST_MASTER_SECONDS = 1.5
"""An endpoint that does not answer for this long counts as a timeout; the kernel has sent a second SYN by then."""
_SETTLED = {"met", "agent", "foreign"}
"""Outcomes that another attempt at the same endpoint does not change."""
_UNANSWERED = {"timeout", "silent"}


_Knock = asyncio.Future[tuple[Attempt, Connection | None]]
"""An attempt at an endpoint that goes on."""


class Attendance(NamedTuple):
    """The result of trying to join the roll call."""

    connection: Connection | None
    attempts: tuple[Attempt, ...]


def doors(addresses: Iterable[str], port: int, job: str, *, agent: bool = False, side: bool = True) -> tuple[Door, ...]:
    """Return the endpoints at these addresses: MASTER_PORT first, then the side ports."""
    found = tuple(addresses)
    master = tuple(Door(address, port, side=False, only_connect=agent) for address in found)
    if not side:
        return master
    return master + tuple(Door(a, p, side=True) for a in found for p in identity.side_ports(job))


async def attend(
    ways: tuple[Door, ...],
    hello: Hello,
    *,
    seconds: float,
    connect_seconds: float,
    once: bool = False,
    secret: bytes | None = None,
    leads: list[Door] | None = None,
) -> Attendance:
    """Try all endpoints repeatedly until the leader admits this process or `seconds` are over.

    If the job has a `secret`, only a leader that knows it counts. If a side port answers first, MASTER_PORT is tried
    for a moment longer, because the report needs to know whether it is reachable. `leads` are endpoints where the
    leader may be. They are tried once a second. The caller may add to them meanwhile, and endpoints that another
    follower names are added here.
    """
    loop = asyncio.get_running_loop()
    least = min(connect_seconds, _LEAST_MASTER_SECONDS)
    search = _Search(ways, [] if leads is None else leads, loop.time() + seconds, least)
    start = loop.time()

    def knock(door: Door) -> _Knock:
        left = max(_LEAST_KNOCK_SECONDS, search.until - loop.time())
        said = _after(hello, loop.time() - start)
        return asyncio.ensure_future(_knock(door, said, min(connect_seconds, left), left, secret))

    while True:
        await _round(search, search.due(loop.time()), knock)
        if search.done or once or loop.time() + _PAUSE_SECONDS >= search.until:
            return Attendance(search.met, _worth_telling(search.last))
        await asyncio.sleep(_PAUSE_SECONDS)


class _Search:
    """What a process knows while it tries to join: how each endpoint answered, and who admitted it."""

    def __init__(self, ways: tuple[Door, ...], leads: list[Door], until: float, least: float) -> None:
        self._ways, self._leads = ways, leads
        self._least = least
        """Seconds without which an attempt that is not answered says nothing."""
        self.until = until
        """When to stop, by the loop's clock."""
        self.last: dict[Door, Attempt] = {}
        self.met: Connection | None = None
        self.refused_before: set[Door] = set()
        """The endpoints that refused before somebody admitted this process, and were not heard since."""
        self._asked_at: dict[Door, float] = {}
        self._began = 0.0
        """When the present round began."""
        self._is_short = False
        """Whether the present round began too late for an attempt to have enough time."""

    @property
    def done(self) -> bool:
        """Whether this process has joined, and MASTER_PORT has been tried if that matters."""
        return self.met is not None and (self.master_settled or self.met.welcome.of_node)

    @property
    def master_settled(self) -> bool:
        """Whether another attempt at MASTER_PORT would change nothing."""
        return any(a.outcome in _SETTLED for d, a in self.last.items() if not d.side)

    def matters(self, door: Door) -> bool:
        """Whether an attempt at an endpoint still says something: MASTER_PORT always, the others until one admits."""
        return self.met is None or not door.side

    def due(self, now: float) -> list[Door]:
        """Return the endpoints for the next round, which begins now."""
        self._began = now
        self._is_short = self.until - now < self._least
        leads = [d for d in self._leads if now - self._asked_at.get(d, -_LEAD_SECONDS) >= _LEAD_SECONDS]
        self._asked_at.update(dict.fromkeys(leads, now))
        return [d for d in (*self._ways, *leads) if self.matters(d)]

    def take(self, door: Door, attempt: Attempt, connection: Connection | None) -> None:
        """Note how an attempt ended, and keep the first connection."""
        seen = self.last.get(door)
        if seen is not None and _says_more(seen, attempt, cut_short=self._is_short):
            attempt = seen
        else:
            self.refused_before.discard(door)
        self.last[door] = msgspec.structs.replace(attempt, tries=seen.tries + 1 if seen else 1)
        if attempt.outcome == "elsewhere":
            self._leads.extend(_named(attempt.detail, (*self._ways, *self._leads)))
        if connection is None:
            return
        if self.met is not None:
            connection.writer.close()
            return
        self.met = connection
        self.refused_before = {d for d, a in self.last.items() if a.outcome == "refused"}
        # torch tries a name's addresses one after the other, so every address without an answer matters.
        others = any(not d.side and d not in self.last for d in self._ways)
        unsure = not connection.welcome.of_node and (others or (door.side and not self.master_settled))
        # The leader certainly listens from now on only; until then, MASTER_PORT may have been refused, or be slow.
        now = asyncio.get_running_loop().time()
        self.until = min(self.until, now + _MASTER_PATIENCE_SECONDS if unsure else now)

    def side_ports_from(self) -> float:
        """Return when to try the side ports in this round, if MASTER_PORT does not answer.

        It is at once if MASTER_PORT did not answer before.
        """
        unanswered = any(a.outcome in _UNANSWERED for d, a in self.last.items() if not d.side)
        return self._began + (0.0 if unanswered else _MASTER_PATIENCE_SECONDS)


async def _round(search: _Search, doors: Sequence[Door], knock: Callable[[Door], _Knock]) -> None:
    """Try each endpoint once, the side ports only while MASTER_PORT has not admitted this process.

    They follow once MASTER_PORT has answered otherwise, and after a while without an answer. So the leader of a large
    job serves one connection of each process, not two.
    """
    loop = asyncio.get_running_loop()
    began, from_then_on = loop.time(), search.side_ports_from()
    held = [d for d in doors if d.side]
    knocks = {knock(d): d for d in doors if not d.side}
    try:
        while True:
            now = loop.time()
            if held and (not knocks or now >= from_then_on):
                knocks |= {knock(d): d for d in held}
                held = []
            if not any(map(search.matters, knocks.values())) or (search.met is not None and now >= search.until):
                return
            limit = search.until if search.met is not None else from_then_on if held else None
            patience = None if limit is None else max(0.0, limit - now)
            answered, _ = await asyncio.wait(knocks, timeout=patience, return_when="FIRST_COMPLETED")
            for ended in answered:
                search.take(knocks.pop(ended), *ended.result())
            if search.met is not None:
                held = []
    finally:
        await _give_up(search, knocks, loop.time() - began)


async def _give_up(search: _Search, knocks: Mapping[_Knock, Door], waited: float) -> None:
    """End the attempts that were not answered; a MASTER_PORT that had enough time is noted as silent.

    That it was refused before the leader was met says nothing: the leader may have begun to listen only then.
    """
    for knock, door in knocks.items():
        knock.cancel()
        if door in search.refused_before:
            del search.last[door]
        if not door.side and waited >= _LEAST_MASTER_SECONDS:
            search.last.setdefault(door, door.attempt("timeout", f"no answer within {waited:.1f} s"))
    for result in await asyncio.gather(*knocks, return_exceptions=True):
        if not isinstance(result, BaseException) and result[1] is not None:
            result[1].writer.close()


def _says_more(seen: Attempt, attempt: Attempt, *, cut_short: bool) -> bool:
    """Whether an earlier attempt at an endpoint tells more than the last one.

    The end of the roll call cuts the last attempts short. A leader that may not open more files does not even answer
    everybody.
    """
    unanswered = attempt.outcome in _UNANSWERED
    if seen.outcome == "full":
        return unanswered or attempt.outcome in {"closed", "refused"}
    return unanswered and (cut_short or seen.outcome == attempt.outcome)


def _named(address: str, known: Sequence[Door]) -> list[Door]:
    """Return the side endpoints at an address that another follower names, if new."""
    side = [door for door in known if door.side]
    if address in {d.address for d in side} or not connection.is_address(address) or len(side) > _MOST_DOORS:
        return []
    ports = dict.fromkeys(door.port for door in side)
    return [Door(address, port, side=True, found="job") for port in ports]


def _after(hello: Hello, seconds: float) -> Hello:
    """Return a follower's Hello after `seconds` of attempts."""
    left = max(0.0, hello.seconds_left - seconds)
    return msgspec.structs.replace(hello, waited_seconds=hello.waited_seconds + seconds, seconds_left=left)


def _worth_telling(last: dict[Door, Attempt]) -> tuple[Attempt, ...]:
    """Return the attempts to report: without closed side ports.

    A leader opens only one of its side ports.
    """
    by_chance = {"met", "waiting", "elsewhere"}
    return tuple(
        a
        for d, a in last.items()
        if not d.side or (a.outcome in by_chance if d.found != "master" else a.outcome not in {"refused", "timeout"})
    )


async def _knock(
    door: Door, hello: Hello, seconds: float, left: float, secret: bytes | None
) -> tuple[Attempt, Connection | None]:
    patience = max(_LEAST_ANSWER_SECONDS, min(_ANSWER_SECONDS, left))
    seconds = seconds if door.found == "master" else min(seconds, _LEAD_SECONDS)
    said = msgspec.structs.replace(hello, found=door.found)
    return await shake_hands(door, said, seconds, patience, secret)
