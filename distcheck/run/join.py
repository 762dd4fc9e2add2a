"""How a process joins the roll call: as leader, as follower, or not at all."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.facts.rank import Role
from distcheck.probe import network, open_files
from distcheck.rollcall import client, identity, resolution
from distcheck.rollcall.client import Attendance
from distcheck.rollcall.connection import is_loopback
from distcheck.rollcall.handshake import Connection, Door
from distcheck.rollcall.protocol import Hello
from distcheck.rollcall.server import Server
from distcheck.run import lost, storage
from distcheck.run.progress import StageView

if TYPE_CHECKING:
    from distcheck.run.context import Session

_FILES_BESIDE_FOLLOWERS, _FILES_KEPT_FREE = 512, 64
_COPIED_SECONDS = 5.0
_MATES_SECONDS = 3.0
"""How long the first process of a node that did not find rank 0 waits for the others."""

_LEAST_JOIN_SECONDS = 5.0
"""For the nodes that came for numbers: they have looked at themselves for unlike times since then."""

Doors = tuple[Door, ...]


async def arrive(run: Session) -> Role:
    """Join the roll call and return this process's role.

    The leader is rank 0's process, or another one that stands in for it.
    """
    place = run.request.placements[0]
    run.record.begin("meeting")
    run.join_deadline = time.monotonic() + join_patience(run)
    # A pod may start before the service that names rank 0 exists; torch retries as well.
    patience = run.join_seconds() / 2 if "KUBERNETES_SERVICE_HOST" in run.request.environ else 0.0
    resolved = await resolution.resolve(place.master_addr or "", run.request.resolver_seconds, patience)
    run.record.note_resolution(resolved)
    addresses = resolved.addresses if isinstance(resolved, Resolution) else ()
    ways = client.doors(addresses, place.master_port or 0, _job_name(run), agent=_agent(run))
    if place.master_derived and 0 in run.request.own_ranks and _is_elsewhere(run, addresses):
        return Role.ALONE  # the others look for rank 0 at those addresses until --join-timeout
    if 0 in run.request.own_ranks:
        # A launch line copied to another node: its node 0 is at an address that is not here.
        copied = run.request.launch is not None and _is_elsewhere(run, addresses)
        if copied and await _finds_another_leader(run, ways, min(_COPIED_SECONDS, run.join_seconds() / 2)):
            return Role.FOLLOWER
        return await _open_as_rank_0(run, ways, place.master_port or 0)
    role = Role.ALONE
    if addresses or lost.to_ask(run.request.environ):
        role = await _join_as_follower(run, ways, addresses)
    return await _gather_here(run) if role is Role.ALONE else role


def join_patience(run: Session) -> float:
    """Return --join-timeout, less what this process waited for numbers if nodes did not come for theirs."""
    whole = run.asked.join_timeout_seconds
    return max(whole - run.request.waited, min(whole, _LEAST_JOIN_SECONDS))


def _job_name(run: Session) -> str:
    """Return the name by which processes of one job recognize each other."""
    return identity.job_key(run.request.environ, run.request.placements[0])


def _secret(run: Session) -> bytes | None:
    """Return the secret that the processes of this job share, None without a token."""
    return identity.job_secret(run.request.environ)


def _hello(run: Session) -> Hello:
    """Return the Hello that this process sends to an endpoint."""
    place = run.request.placements[0]
    return Hello(
        nonce="",
        job=identity.public_key(_job_name(run)),
        master=f"{place.master_addr}:{place.master_port}",
        uid=run.uid,
        ranks=tuple(sorted(run.request.own_ranks)),
        world_size=place.world_size or 0,
        seconds_left=run.remaining(),
        waited_seconds=max(0.0, join_patience(run) - (run.join_deadline - time.monotonic())),
    )


def _agent(run: Session) -> bool:
    """Whether torchrun's agent listens on MASTER_PORT, by its own variable."""
    return run.request.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not run.asked.started_here


async def _open_as_rank_0(run: Session, ways: Doors, port: int) -> Role:
    sock, bound = network.bind(port, agent=_agent(run))
    run.record.note(bind=bound)
    lone = run.request.speaks_for_all
    # A second rank 0 finds the first one on MASTER_PORT.
    if bound.outcome == "in-use" and not lone and await _finds_another_leader(run, ways):
        return Role.FOLLOWER
    server = run.server = _new_server(run)
    if not lone:
        # Another process may stand in for rank 0 already. Open MASTER_PORT only once that is known.
        taken = await server.open_side_door()
        first = identity.side_ports(_job_name(run))[0]
        others = tuple(d for d in ways if d.side and d.port != taken)
        if taken != first and await _finds_another_leader(run, others):
            await server.close()
            run.server = None
            if sock is not None:
                sock.close()
            return Role.FOLLOWER
    if sock is not None:
        await server.open(sock)
    run.record.note(role=Role.LEADER)
    # The other ranks of this node will connect to MASTER_ADDR:MASTER_PORT from here, too.
    tried = await _attend(run, tuple(d for d in ways if not d.side), run.request.connect_seconds, once=True)
    if tried.connection is not None:
        tried.connection.writer.close()
    run.record.note(attempts=tried.attempts)
    return Role.LEADER


async def _finds_another_leader(run: Session, ways: Doors, seconds: float = 0.0) -> bool:
    """Return whether another process leads the roll call already, or within `seconds`; if so, join it."""
    if not ways:
        return False
    attendance = await _attend(run, ways, seconds or run.request.connect_seconds, once=not seconds)
    run.record.note(attempts=attendance.attempts)
    if attendance.connection is not None and attendance.connection.welcome.uid != run.uid:
        _met(run, attendance.connection)
        return True
    return False


async def _attend(
    run: Session, ways: Doors, seconds: float, *, once: bool = False, leads: list[Door] | None = None
) -> Attendance:
    """Try these endpoints with this process's Hello."""
    return await client.attend(
        ways,
        _hello(run),
        seconds=seconds,
        connect_seconds=run.request.connect_seconds,
        once=once,
        secret=_secret(run),
        leads=leads,
    )


def _new_server(run: Session) -> Server:
    """Return a server for the roll call, with as many open files as its followers may need."""
    followers = run.request.placements[0].world_size or 0
    _raise_file_limit(run, followers)
    left = open_files.left()
    server = _server(run)
    server.packages = storage.packages_of(run)
    server.most_connections = left - min(_FILES_KEPT_FREE, left // 2)
    if left < followers + _FILES_BESIDE_FOLLOWERS:
        server.accepted_at_once = 2  # nobody has to go before its Hello is read
    run.record.note(most_followers=server.most_connections)
    if run.complete:
        server.close_roll()
    return server


def _server(run: Session) -> Server:
    place = run.request.placements[0]
    return Server(
        run=run.record.run,
        uid=run.uid,
        job=_job_name(run),
        master=f"{place.master_addr}:{place.master_port}",
        ranks=run.request.own_ranks,
        world_size=place.world_size or 0,
        secret=_secret(run),
    )


def _raise_file_limit(run: Session, followers: int) -> None:
    """Raise the limit of open files for this many followers."""
    _limit, before = open_files.raise_limit(4 * followers + _FILES_BESIDE_FOLLOWERS)
    run.file_limit = run.file_limit or before


async def _join_as_follower(run: Session, ways: Doors, addresses: tuple[str, ...]) -> Role:
    """Join within --join-timeout; half-way, stand in for a missing rank 0 on its own host."""
    patience = run.join_seconds()
    ours = not set(addresses).isdisjoint(_own_addresses(run))
    halves = (patience / 2, patience / 2) if ours else (patience,)
    leads: list[Door] = []
    seeking = asyncio.ensure_future(lost.seek(leads, run.request.environ, _job_name(run), addresses))
    try:
        for number, seconds in enumerate(halves):
            # A process that reached its job's roll call, but for another MASTER_ADDR, waits to be admitted.
            waits = any(a.outcome == "waiting" for a in run.record.attempts) and lost.to_ask(run.request.environ)
            if number == 1 and not waits and await _stand_in(run):
                return Role.LEADER
            run.progress.begin("", partial(_seeking, run, time.monotonic() + seconds))
            with run.reminding(partial(_awaited, run, seconds)):
                attendance = await _attend(run, ways, seconds, leads=leads)
            run.record.note(attempts=attendance.attempts)
            if attendance.connection is not None:
                _met(run, attendance.connection)
                return Role.FOLLOWER
    finally:
        seeking.cancel()
    return Role.ALONE


def _awaited(run: Session, seconds: float, waited: float) -> str:
    place = run.request.placements[0]
    return (
        f"rank {place.rank} is still trying to reach rank 0 at {place.master_addr}:{place.master_port}; "
        f"the roll call closes in {max(0.0, seconds - waited):.0f} s"
    )


def _seeking(run: Session, until: float) -> StageView:
    place = run.request.placements[0]
    why = f"rank {place.rank} tries to reach it at {place.master_addr}:{place.master_port}"
    return StageView("roll call", awaited="rank 0", why=why, until=until)


async def _gather_here(run: Session) -> Role:
    """Join the processes of this node that did not find rank 0, for one report of the node."""
    mates = (run.request.placements[0].local_world_size or 0) - len(run.request.placements)
    seconds = min(_MATES_SECONDS, run.remaining(1.0))
    if mates < 1 or seconds < 1:
        return Role.ALONE
    server = _server(run)
    server.of_node = True
    if await server.open_side_door(1) is not None:
        run.server = server
        await server.wait_for_all(seconds, ranks=len(run.request.own_ranks) + mates)
        return Role.ALONE
    doors = tuple(lost.side_doors(["127.0.0.1"], _job_name(run), "node", ())[:1])
    attendance = await _attend(run, doors, seconds)
    if attendance.connection is None:
        return Role.ALONE
    _met(run, attendance.connection)
    return Role.FOLLOWER


async def put_up_signpost(run: Session, connection: Connection) -> None:
    """Send processes of the job that connect to this node to the leader's address.

    They come here because their MASTER_ADDR leads to this node, or because they try every node.
    """
    at = connection.leader_address
    if at in _own_addresses(run) or is_loopback(at):
        return
    server = _server(run)
    server.leader_at = at
    if await server.open_side_door(1) is not None:
        run.signpost = server


def _own_addresses(run: Session) -> set[str]:
    interfaces = run.record.node.interfaces if run.record.node else ()
    return set() if isinstance(interfaces, Missing) else {i.address for i in interfaces}


def _is_elsewhere(run: Session, addresses: tuple[str, ...]) -> bool:
    """Whether all of these addresses certainly belong to another host."""
    own = _own_addresses(run)
    return bool(own and addresses) and not any(a in own or a.startswith("127.") or a == "::1" for a in addresses)


async def _stand_in(run: Session) -> bool:
    """Lead the roll call in place of rank 0, on a side port, to report the missing ranks."""
    server = _new_server(run)
    if await server.open_side_door() != identity.side_ports(_job_name(run))[0]:
        await server.close()
        return False
    run.server = server
    run.record.note(role=Role.LEADER)
    return True


def _met(run: Session, connection: Connection) -> None:
    run.connection = connection
    run.record.run = connection.welcome.run
    run.record.met = True
    run.record.note(role=Role.FOLLOWER, leader_rank=connection.welcome.rank)
