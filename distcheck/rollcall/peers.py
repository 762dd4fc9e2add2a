"""The peer round: nodes test each other both ways on ephemeral ports, like NCCL and Gloo.

Up to 64 nodes all pairs are tried, beyond that each node tries ten others, 1, 2, 4, … places further on. The first
connection has small segments and proves the port. A second one sends 2 MiB: no confirmation at all means that large
packets are dropped, retransmissions mean loss. A filter drops all packets that the kernel passes on together or none,
so 6 MiB follow with one packet per write. An endpoint proves that it knows the roster's nonce and says whose it is,
which detects an address that every node has. What was slow is repeated alone, while the others are quiet, and the
better time counts.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from distcheck.facts.network import PeerTrial, Transfer
from distcheck.rollcall import connection, framing
from distcheck.rollcall.doors import PeerHandshake, peer_handshake
from distcheck.rollcall.path import TRANSFER_BYTES, datagrams, tcp_info, transfer
from distcheck.rollcall.protocol import PeerDoor, Roster

_ALL_PAIRS_UP_TO = 64
_MOST_TESTED = 10
"""Others that a node tests in a larger job: what a node sends and the leader judges does not grow with the job."""
_AT_ONCE = 64
_LEAST_SECONDS = 0.5
_ALONE_SECONDS = 0.5
"""A transfer that takes longer is slow or stalled, and does not slow down the next one."""
_USUAL_MTU_BYTES = 1500
_SUSPENDED_SECONDS = 0.5
"""A deadline noticed so much later: this process was suspended or had no CPU."""
_QUICK_BYTES_PER_SECOND = 1e8
"""The rate of an otherwise idle link of 1 Gbit/s."""
_MORE_TRIES = 2
_MORE_LOSING = 5
_SINGLY_BYTES = 3 << 21
"""Bytes that a node sends packet by packet, to all endpoints together: in 4,000 packets, 2 % loss is not chance."""
_FEW_REPEATED = 0.005
"""Share of the segments; with more, one transfer proves nothing: a busy host repeats segments that are only late."""
_LOSING_SECONDS = 0.5
"""Extra time to repeat a transfer with losses: a slow port drops many packets while several nodes send to it."""
_DOUBTFUL = 0.5
"""Share of the usual rate; rules call a node slow below half of it."""
_MOST_DOUBTFUL = 32
AGAIN_SECONDS, _AGAIN_ALONE_SECONDS = 0.3, 0.1
"""Time for a repeated transfer, and for the start of a further one."""


def choose(doors: Mapping[str, Sequence[PeerDoor]]) -> dict[str, tuple[PeerDoor, ...]]:
    """Return which endpoints every process tests, given the endpoints of all.

    Up to 64 processes test all others; beyond that each tests those at some `distances` after it, so that as many
    others test a process as it tests itself. Each starts with the next process, so that no process is first for all.
    """
    uids = list(doors)
    count = len(uids)
    steps = range(1, count) if count <= _ALL_PAIRS_UP_TO else distances(count)
    return {
        uid: tuple(door for step in steps for door in doors[uids[(place + step) % count]])
        for place, uid in enumerate(uids)
    }


def distances(count: int) -> list[int]:
    """Return how far from a node of so many, at least 2, the others are that it tests, up to half of the way round.

    1, 2, 4, 8, … up to 1,024 nodes. In larger jobs the distances are as many and further apart.
    """
    last = min((count - 1).bit_length(), _MOST_TESTED) - 1
    return sorted({round((count / 2) ** (n / last)) for n in range(last + 1)}) if last else [1]


async def try_peers(
    uid: str,
    roster: Roster,
    mtu_bytes: Mapping[str, int] | None = None,
    seconds: float | None = None,
    secret: bytes | None = None,
) -> tuple[PeerTrial, ...]:
    """Test the endpoints of a roster, then transfer data to those that answered.

    `mtu_bytes` is this node's MTU by local address; `secret` is the job's, if it has one.
    """
    limit = asyncio.Semaphore(_AT_ONCE)
    most = roster.seconds if seconds is None else min(seconds, roster.seconds)

    async def trial(door: PeerDoor) -> PeerTrial:
        async with limit:
            tried, source = await _try(uid, door, peer_handshake(roster.nonce, door.uid, secret), most)
            if tried.outcome != "met":
                return tried
            mtu = (mtu_bytes or {}).get(source, _USUAL_MTU_BYTES)
            return replace(tried, datagrams=await datagrams(door, peer_handshake(roster.nonce, door.uid, secret), mtu))

    trials = await asyncio.gather(*(trial(d) for d in roster.doors))
    return await _transfer(roster, trials, most, secret)


async def _transfer(
    roster: Roster, trials: Sequence[PeerTrial], seconds: float, secret: bytes | None
) -> tuple[PeerTrial, ...]:
    """Send data to the endpoints that answered, one after the other.

    Whatever happens, each of them gets its turn.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    todo = [n for n, tried in enumerate(trials) if tried.outcome == "met"]
    sending: dict[int, asyncio.Task[Transfer | None]] = {}
    for turn, n in enumerate(todo):
        left = until - loop.time()
        if left <= 0:
            break
        door = roster.doors[n]
        said = peer_handshake(roster.nonce, door.uid, secret)
        alone = min(_ALONE_SECONDS, left / (len(todo) - turn))
        most, singly = max(left, _LEAST_SECONDS), min(TRANSFER_BYTES, _SINGLY_BYTES // len(todo))
        sending[n] = asyncio.create_task(_at_its_best(door, said, most, loop.time() + alone, singly))
        await asyncio.wait({sending[n]}, timeout=alone)
    sent = dict(zip(sending, await asyncio.gather(*sending.values()), strict=True))
    return tuple(_carrying(tried, sent.get(n)) for n, tried in enumerate(trials))


def _carrying(tried: PeerTrial, sent: Transfer | None) -> PeerTrial:
    """Return a trial with its transfer and the shortest round trip seen, which is the path's."""
    seen = [s for s in (tried.round_trip_seconds, sent.round_trip_seconds if sent else None) if s is not None]
    return replace(tried, transfer=sent, round_trip_seconds=min(seen, default=None))


def doubtful(trials: Iterable[PeerTrial]) -> list[list[PeerTrial]]:
    """Return the transfers to repeat, in turns in which each process has only one transfer.

    For every process whose fastest transfer, to it or from it, was far slower than usual, or slower than any link of
    today's servers, that transfer is repeated. If the repeat is fast, the process was slow, not the network. Transfers
    that a long round trip explains are left out.
    """
    sent = [t for t in trials if t.transfer and not t.transfer.stalled and not t.transfer.latency_bound]
    below = max(_DOUBTFUL * median([_rate(t) for t in sent]), _QUICK_BYTES_PER_SECOND) if sent else 0.0
    fastest: dict[tuple[str, str], PeerTrial] = {}
    for t in sent:
        for end in (("from", t.source), ("to", t.target)):
            fastest[end] = max(fastest.get(end, t), t, key=_rate)
    slow = {(t.source, t.target, t.address): t for t in fastest.values() if _rate(t) < below}
    turns: list[list[PeerTrial]] = []
    for t in sorted(slow.values(), key=_rate)[:_MOST_DOUBTFUL]:
        ends = {t.source, t.target}
        free = next((turn for turn in turns if all(ends.isdisjoint((o.source, o.target)) for o in turn)), None)
        if free is None:
            turns.append(free := [])
        free.append(t)
    return turns


def _rate(trial: PeerTrial) -> float:
    return trial.transfer.rate if trial.transfer else 0.0


async def send_again(uid: str, roster: Roster, secret: bytes | None = None) -> tuple[PeerTrial, ...]:
    """Repeat the transfer to the endpoints of a roster; leave out those that accepted none."""
    loop = asyncio.get_running_loop()
    trials = []
    for door in roster.doors:
        said = peer_handshake(roster.nonce, door.uid, secret)
        sent = await _at_its_best(door, said, roster.seconds, loop.time() + _AGAIN_ALONE_SECONDS)
        blank = PeerTrial(uid, door.uid, door.address, door.port, "met", 0.0, uses=door.uses)
        trials += [_carrying(blank, sent)] if sent else []
    return tuple(trials)


def better_of(trial: PeerTrial, again: PeerTrial | None) -> PeerTrial:
    """Return a trial with the better of its transfer and the repeated one."""
    first, second = trial.transfer, again.transfer if again else None
    if first is None or second is None or second.stalled:
        return trial
    better = max(first, second, key=lambda t: t.rate)
    counts = {"segments": first.segments + second.segments, "repeated": first.repeated + second.repeated}
    return replace(trial, transfer=replace(better, repeats=True, **counts))


async def _at_its_best(
    door: PeerDoor, said: PeerHandshake, seconds: float, until: float, singly: int = 0
) -> Transfer | None:
    """Send data, then `singly` bytes packet by packet; return the fastest transfer.

    Its segment counts are sums over the transfers.

    A slow transfer is repeated, because a process on a busy host may have waited for a CPU. So is one with repeated
    segments; the segments of the transfer that raised the doubt no longer count, because a busy host loses many at one
    moment. No transfer starts much after `until` (the loop's clock), so that the others get their time.
    """
    loop = asyncio.get_running_loop()
    best = last = await transfer(door, said, seconds)
    segments = repeated = made = 0
    alone = losing = False
    while best is not None and last is not None and not best.stalled:
        made, segments, repeated = made + 1, segments + last.segments, repeated + last.repeated
        slow = not alone and best.rate < _QUICK_BYTES_PER_SECOND and made <= _MORE_TRIES
        unsure = (losing or last.repeated > _FEW_REPEATED * last.segments) and made <= _MORE_LOSING
        over = loop.time() >= until + (_LOSING_SECONDS if unsure else 0.0)
        if over or not (slow or unsure or (singly and not alone)):
            return replace(best, segments=segments, repeated=repeated)
        if unsure and not losing:
            losing, segments, repeated = True, 0, 0
        alone = singly > 0 and not slow
        last = await transfer(door, said, seconds, singly if alone else 0)
        if last is None or last.stalled:
            return last or best
        best = best if alone else max(best, last, key=lambda t: t.rate)
    return best


async def _try(
    uid: str, door: PeerDoor, said: PeerHandshake, seconds: float, *, again: bool = False
) -> tuple[PeerTrial, str]:
    """Connect in small segments and do the handshake; return the trial and our own address.

    If this process did not run meanwhile, a missing answer proves nothing, and it tries once `again`.
    """
    loop = asyncio.get_running_loop()
    start = since = loop.time()
    source, round_trip = "", None

    def ended(outcome: str, detail: str = "") -> tuple[PeerTrial, str]:
        took = loop.time() - start
        return replace(blank, outcome=outcome, seconds=took, detail=detail, round_trip_seconds=round_trip), source

    blank = PeerTrial(
        source=uid, target=door.uid, address=door.address, port=door.port, outcome="failed", seconds=0.0, uses=door.uses
    )
    writer = None
    try:
        ipaddress.ip_address(door.address)  # a name would need a resolver, which can block
        reader, writer = await connection.within(connection.connect_again(door.address, door.port), seconds)
        source, since = connection.plain_address(writer.get_extra_info("sockname")[0]), loop.time()
        writer.write(said.knock)
        heard = await connection.within(reader.readexactly(len(said.answer)), seconds)
        counters = tcp_info(writer.get_extra_info("socket"))
        round_trip = counters.round_trip_seconds if counters else None
        return ended("met") if heard == said.answer else ended("foreign", framing.banner(heard))
    except (asyncio.TimeoutError, TimeoutError):  # our timeout, or the kernel's
        if loop.time() > since + seconds + _SUSPENDED_SECONDS and not again:
            return await _try(uid, door, said, seconds, again=True)
        return ended("silent" if writer else "timeout", f"no answer within {seconds:.1f} s")
    except ConnectionRefusedError as error:
        return ended("refused", connection.words_of(error))
    except asyncio.IncompleteReadError as error:
        return ended("foreign", framing.banner(error.partial))
    except ValueError as error:
        return ended("failed", str(error))
    except OSError as error:
        unreachable = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
        return ended("unreachable" if unreachable else "failed", connection.words_of(error))
    finally:
        if writer is not None:
            writer.close()
