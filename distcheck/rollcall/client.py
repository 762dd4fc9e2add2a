"""The follower's side: tries every endpoint until the leader answers; records the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from distcheck.facts.network import Attempt
from distcheck.rollcall import connection, identity
from distcheck.rollcall.handshake import Connection, Door, shake_hands
from distcheck.rollcall.protocol import Hello

_ANSWER_SECONDS = 3.0
_LEAST_ANSWER_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_MASTER_PATIENCE_SECONDS = 2.0
_MOST_DOORS = 256
_LEAD_SECONDS = 1.0
"""Between two attempts at an endpoint where the leader only may be, and the longest time for one connection."""
_LEAST_MASTER_SECONDS = 1.5
"""An endpoint that does not answer for this long counts as a timeout; the kernel has sent a second SYN by then."""
_SETTLED = {"met", "agent", "foreign", "silent"}
"""Outcomes that another attempt at the same endpoint does not change."""


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
    leads = [] if leads is None else leads
    asked_at: dict[Door, float] = {}
    loop = asyncio.get_running_loop()
    start = loop.time()
    until = start + seconds
    last: dict[Door, Attempt] = {}
    met: Connection | None = None

    def master_settled() -> bool:
        return any(a.outcome in _SETTLED for d, a in last.items() if not d.side)

    def take(door: Door, attempt: Attempt, connection: Connection | None) -> None:
        nonlocal met, until
        seen = last.get(door)
        if seen is not None and seen.outcome == attempt.outcome == "timeout":
            attempt = seen  # the end of the roll call cuts the last attempt short
        last[door] = msgspec.structs.replace(attempt, tries=seen.tries + 1 if seen else 1)
        if attempt.outcome == "elsewhere":
            leads.extend(_named(attempt.detail, (*ways, *leads)))
        if connection is None:
            return
        if met is not None:
            connection.writer.close()
            return
        met = connection
        # torch tries a name's addresses one after the other, so every address without an answer matters.
        others = any(not d.side and d not in last for d in ways)
        unsure = not connection.welcome.of_node and (others or (door.side and not master_settled()))
        until = min(until, loop.time() + (_MASTER_PATIENCE_SECONDS if unsure else 0.0))

    while True:
        left = max(0.05, until - loop.time())
        began = loop.time()
        due = [d for d in leads if began - asked_at.get(d, -_LEAD_SECONDS) >= _LEAD_SECONDS]
        asked_at.update(dict.fromkeys(due, began))
        todo = [d for d in (*ways, *due) if met is None or not d.side]
        said = _after(hello, began - start)
        knocks = {asyncio.ensure_future(_knock(d, said, min(connect_seconds, left), left, secret)): d for d in todo}
        try:
            while any(met is None or not d.side for d in knocks.values()) and (met is None or loop.time() < until):
                patience = None if met is None else until - loop.time()
                answered, _ = await asyncio.wait(knocks, timeout=patience, return_when="FIRST_COMPLETED")
                for knock in answered:
                    del knocks[knock]
                    take(*knock.result())
        finally:
            waited = loop.time() - began
            for knock, door in knocks.items():
                knock.cancel()
                if not door.side and waited >= _LEAST_MASTER_SECONDS:
                    last.setdefault(door, door.attempt("timeout", f"no answer within {waited:.1f} s"))
            for result in await asyncio.gather(*knocks, return_exceptions=True):
                if not isinstance(result, BaseException) and result[2] is not None:
                    result[2].writer.close()
        done = met is not None and (master_settled() or met.welcome.of_node)
        if done or once or loop.time() + _PAUSE_SECONDS >= until:
            return Attendance(met, _worth_telling(last))
        await asyncio.sleep(_PAUSE_SECONDS)


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
) -> tuple[Door, Attempt, Connection | None]:
    patience = max(_LEAST_ANSWER_SECONDS, min(_ANSWER_SECONDS, left))
    seconds = seconds if door.found == "master" else min(seconds, _LEAD_SECONDS)
    said = msgspec.structs.replace(hello, found=door.found)
    attempt, connection = await shake_hands(door, said, seconds, patience, secret)
    return door, attempt, connection
