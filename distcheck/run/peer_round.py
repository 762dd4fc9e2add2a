"""A process's part in the peer round: its endpoints, its tests, and the leader's plan."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface, NetworkFacts, PeerTrial, ReverseLookup, Use
from distcheck.facts.quantities import duration
from distcheck.probe import network
from distcheck.rollcall import connection, identity
from distcheck.rollcall.doors import PeerListener
from distcheck.rollcall.follower import Follower
from distcheck.rollcall.peers import AGAIN_SECONDS, better_of, choose, doubtful, send_again, try_peers
from distcheck.rollcall.protocol import PeerDoor, PeerReport, Roster
from distcheck.rollcall.resolution import in_thread
from distcheck.rollcall.server import Server
from distcheck.run import waiting
from distcheck.selection import interfaces

if TYPE_CHECKING:
    from distcheck.run.context import Session

_REVERSE_SECONDS = 2.0
_MOST_LOOKED_UP = 4
_LOOK_UPS, _QUICK_SECONDS, _SLOW_SECONDS = 3, 0.1, 0.5
"""A somewhat slow look-up is repeated: a busy host is slow once, a slow resolver is slow again."""
_REPORT_RESERVE_SECONDS = 3.0
_ALL_AGAIN_SECONDS = 0.5
"""No repeated transfer starts later than this after the first one."""
_PATIENCE_AGAIN_SECONDS = 1.0


def addresses(run: Session, met_at: str) -> dict[str, tuple[Use, ...]]:
    """Return this process's addresses with their uses: the one to rank 0, NCCL's, Gloo's, an engine's if it is another.

    Loopback addresses and those that need a zone are left out, because peers cannot use them; rules judge them.
    """
    node = run.record.node
    known = node.interfaces if node and not isinstance(node.interfaces, Missing) else ()
    facts = node.network if node else None
    picks: list[tuple[Use, str]] = [("master", met_at)]
    picks += [("nccl", i.address) for i in _nccl(run, known, facts)]
    picks += [("gloo", i.address) for i in _gloo(run, known, facts)]
    found: dict[str, tuple[Use, ...]] = {}
    for use, address in picks:
        if address == met_at or not (connection.is_loopback(address) or address.lower().startswith("fe80:")):
            found[address] = (*found.get(address, ()), use)
    engine = _engine(run)
    return found if engine in found or engine not in {i.address for i in known} else found | {engine: ("engine",)}


def _engine(run: Session) -> str:
    """Return the address that an inference engine gives to its processes on other nodes, '' without one."""
    launch = run.record.process.launch if run.record.process else None
    return launch.engine.address if launch and launch.engine and launch.nodes > 1 and launch.engine.announces else ""


def _nccl(run: Session, known: Sequence[Interface], facts: NetworkFacts | None) -> Sequence[Interface]:
    """Return NCCL's bootstrap interface; all ranks of a process have the same variables."""
    if facts is None or not run.record.ranks:
        return ()
    return interfaces.nccl(known, interfaces.settings(run.record.ranks[0].environment, facts.nccl_files))[:1]


def _gloo(run: Session, known: Sequence[Interface], facts: NetworkFacts | None) -> Sequence[Interface]:
    if facts is None or not run.record.ranks:
        return ()
    chosen = interfaces.gloo(known, run.record.ranks[0].environment, facts.own_name_binds)
    return () if isinstance(chosen, Missing) else chosen[:1]


async def open_doors(run: Session, met_at: str) -> tuple[PeerDoor, ...]:
    """Open this process's endpoints and return those that could be opened."""
    run.peer_listener = PeerListener(run.uid, identity.job_secret(run.request.environ))
    await run.peer_listener.open(addresses(run, met_at))
    return run.peer_listener.doors


async def take_part(run: Session, roster: Roster, seconds: float, others: Sequence[str]) -> PeerReport:
    """Serve our endpoints, test the roster's, and look up the names of `others`."""
    if run.peer_listener is not None:
        run.peer_listener.expect(roster.nonce)
    if roster.again:
        return PeerReport(await send_again(run.uid, roster, identity.job_secret(run.request.environ)))
    node = run.record.node
    known = node.interfaces if node and not isinstance(node.interfaces, Missing) else ()
    trials, reverse = await asyncio.gather(
        try_peers(
            run.uid,
            roster,
            {i.address: i.mtu_bytes for i in known},
            seconds,
            identity.job_secret(run.request.environ),
        ),
        _look_up([a for a in dict.fromkeys(others) if not connection.is_loopback(a)][:_MOST_LOOKED_UP], seconds),
    )
    return PeerReport(trials, reverse)


async def _look_up(others: Sequence[str], seconds: float) -> tuple[ReverseLookup, ...]:
    most = min(seconds, _REVERSE_SECONDS)

    async def look_up(address: str) -> ReverseLookup:
        quickest = ReverseLookup(address=address, name="", seconds=most)
        with contextlib.suppress(asyncio.TimeoutError):
            for _ in range(_LOOK_UPS):
                found = await connection.within(in_thread(lambda: network.reverse(address)), most)
                quickest = min(quickest, found, key=lambda r: r.seconds)
                if not _QUICK_SECONDS < found.seconds < _SLOW_SECONDS:
                    break
        return quickest

    return tuple(await asyncio.gather(*(look_up(a) for a in others)))


async def hold(run: Session, server: Server) -> None:
    """Let every node test every other node's endpoints, and record the results."""
    here = {uid: server.followers[uid] for uid in run.record.followers if server.followers[uid].report.peer_doors}
    run.record.begin("peers", here)
    if not here:
        return
    run.record.note_addresses({uid: f.address for uid, f in here.items()})
    met_at = [f.met_at for f in here.values()]
    own = await open_doors(run, next((a for a in met_at if not connection.is_loopback(a)), met_at[0]))
    doors = {run.uid: own} if own else {}
    doors |= {uid: follower.report.peer_doors for uid, follower in here.items()}
    doors = {uid: doors[uid] for uid in _representatives(run, here, doors)}
    nonce, choice = secrets.token_hex(8), choose(doors)
    # A test connects, then reads; transfers follow, and the last of them may take as long again.
    seconds = min(run.request.connect_seconds, max(0.5, (run.remaining(_REPORT_RESERVE_SECONDS) - 2) / 4))
    for uid, follower in here.items():
        follower.say(Roster(nonce, choice.get(uid, ()), seconds))
    patience = min(4 * seconds + 3, run.remaining(_REPORT_RESERVE_SECONDS))
    since = time.monotonic()
    run.progress.begin(
        f"peers: {len(doors)} processes test the ports between them, {duration(patience)} at most",
        lambda: waiting.followers("peers", [*here.values()], since, why="testing ports", until=since + patience),
    )
    done_at: dict[str, float] = {}

    async def take_own_part() -> PeerReport:
        roster = Roster(nonce, choice.get(run.uid, ()), seconds)
        report = await take_part(run, roster, seconds, [f.address for f in here.values()])
        done_at[run.uid] = time.monotonic()
        return report

    mine, heard = await asyncio.gather(take_own_part(), server.hear_all(PeerReport, patience, here))
    run.record.note_done("peers", done_at | {uid: here[uid].heard_at for uid in heard}, here.keys() - heard.keys())
    trials = [*mine.trials, *_own_trials(heard)]
    run.record.peers = await _send_again(run, server, nonce, tuple(t for t in trials if t.target in doors))
    run.record.note_reverse({run.uid: mine.reverse} | {uid: told.reverse for uid, told in heard.items()})
    run.record.note_silent(server, here.keys() - heard.keys(), "it did not say in time which of the others it reaches")


async def _send_again(run: Session, server: Server, nonce: str, trials: tuple[PeerTrial, ...]) -> tuple[PeerTrial, ...]:
    """Repeat transfers so slow that a node would be blamed.

    One slow transfer on a busy host proves nothing.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + min(_ALL_AGAIN_SECONDS, run.remaining(_REPORT_RESERVE_SECONDS))
    sent: dict[tuple[str, str, str], PeerTrial] = {}
    for turn in doubtful(trials):
        if loop.time() >= until:
            break
        rosters = {t.source: Roster(nonce, (_door(t),), AGAIN_SECONDS, again=True) for t in turn}
        followers = rosters.keys() - {run.uid}
        for uid in followers:
            server.followers[uid].say(rosters[uid])
        own = [take_part(run, rosters[run.uid], AGAIN_SECONDS, ())] if run.uid in rosters else []
        heard, mine = await asyncio.gather(
            server.hear_all(PeerReport, _PATIENCE_AGAIN_SECONDS, followers), asyncio.gather(*own)
        )
        told = [*_own_trials(heard), *(t for report in mine for t in report.trials)]
        sent |= {(t.source, t.target, t.address): t for t in told}
    return tuple(better_of(t, sent.get((t.source, t.target, t.address))) for t in trials)


def _own_trials(told: Mapping[str, PeerReport]) -> list[PeerTrial]:
    """Return the trials of each follower; none speaks for another."""
    return [t for uid, report in told.items() for t in report.trials if t.source == uid]


def _door(trial: PeerTrial) -> PeerDoor:
    return PeerDoor(trial.target, trial.address, trial.port, trial.uses)


def _representatives(run: Session, here: Mapping[str, Follower], doors: Mapping[str, Sequence[PeerDoor]]) -> list[str]:
    """Return one process for each node; on a single node, two of its processes."""
    node_of = {run.uid: run.record.node.key if run.record.node else ""}
    node_of |= {uid: follower.report.process.node for uid, follower in here.items()}
    first: dict[str, str] = {}
    for uid in doors:
        first.setdefault(node_of[uid], uid)
    return list(first.values()) if len(first) > 1 else list(doors)[:2]
