"""The follower's side: try every endpoint until the leader answers; record attempts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.network import A_STORE, Attempt, Resolution
from distcheck.probe import network
from distcheck.rollcall import connection, framing, identity, protocol
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import (
    Answer,
    Challenge,
    Elsewhere,
    Found,
    FromLeader,
    Hello,
    NotYet,
    Proof,
    Refused,
    Welcome,
    Word,
)
from distcheck.rollcall.wire import HEADER, ProtocolError

if TYPE_CHECKING:
    from distcheck.rollcall.seal import Seal

_ANSWER_SECONDS = 3.0
_LEAST_ANSWER_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_RESOLVE_PAUSE_SECONDS = 0.5
_QUICK_SECONDS = 0.5
_MASTER_PATIENCE_SECONDS = 2.0
_MOST_DOORS = 256
_LEAD_SECONDS = 1.0
"""Between two attempts at an endpoint where the leader only may be, and the longest time for one connection."""
_LEAST_MASTER_SECONDS = 1.5
"""An endpoint that does not answer for this long counts as a timeout; the kernel has sent a second SYN by then."""
_STORE_SECONDS = 0.5
_STORE_PING = b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d"
_SETTLED = {"met", "agent", "foreign", "silent"}
"""Outcomes that another attempt at the same endpoint does not change."""
_UNKNOWING = "a roll call without this DISTCHECK_TOKEN"
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
_T = TypeVar("_T")


class Door(NamedTuple):
    """One endpoint where the leader may listen."""

    address: str
    port: int
    side: bool
    only_connect: bool = False
    """True where another program rightly listens, such as torchrun's agent: connect, but send nothing."""
    found: Found = "master"


class Connection(NamedTuple):
    """A connection after the handshake: the leader has admitted this process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    welcome: Welcome
    ours: Seal | None = None
    theirs: Seal | None = None

    def say(self, word: Word) -> None:
        """Send a message."""
        self.writer.write(encode(word, self.ours))

    async def hear(self) -> FromLeader:
        """Return the leader's next message; raises as `framing.read` does."""
        return await framing.read(self.reader, protocol.leader_decoder, seal=self.theirs)

    @property
    def local_address(self) -> str:
        """Our address on this connection."""
        return connection.plain_address(self.writer.get_extra_info("sockname")[0])

    @property
    def leader_address(self) -> str:
        """The leader's address on this connection."""
        return connection.plain_address(self.writer.get_extra_info("peername")[0])


class Attendance(NamedTuple):
    """The result of trying to join the roll call."""

    connection: Connection | None
    attempts: tuple[Attempt, ...]


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run a call that may block forever in a daemon thread; a cancelled wait abandons it.

    asyncio joins its own executor when the loop ends, so a hanging resolver would hang distcheck too.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # a result wherever there is no error

    def work() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 raised in the waiting task
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, daemon=True).start()
    return await future


async def resolve(name: str, seconds: float, patience: float = 0.0, again: int = 0) -> Resolution | Missing:
    """Resolve a name within `seconds`; an unknown name is retried for `patience` seconds.

    A known name is resolved `again` more times, unless that is slow, because its answers may change.
    """
    loop = asyncio.get_running_loop()
    start, tries = loop.time(), 0
    while True:
        tries += 1
        try:
            found = await connection.within(in_thread(lambda: network.resolve(name)), seconds)
        except asyncio.TimeoutError:
            return Missing(reason=f"no answer from the resolver within {seconds:.0f} s")
        if isinstance(found, Resolution):
            if tries > 1:
                found = msgspec.structs.replace(found, tries=tries, seconds=loop.time() - start)
            return await _resolve_again(found, again)
        if loop.time() - start + _RESOLVE_PAUSE_SECONDS > patience:
            return found
        await asyncio.sleep(_RESOLVE_PAUSE_SECONDS)


async def _resolve_again(found: Resolution, again: int) -> Resolution:
    """Return a resolution with the addresses that differ in further answers."""
    changing: set[str] = set()
    for _ in range(again if found.seconds < _QUICK_SECONDS else 0):
        try:
            other = await connection.within(in_thread(lambda: network.resolve(found.name)), _QUICK_SECONDS)
        except asyncio.TimeoutError:
            break
        if isinstance(other, Resolution):
            changing |= set(found.addresses) ^ set(other.addresses)
    return msgspec.structs.replace(found, changing=tuple(sorted(changing))) if changing else found


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
                    last.setdefault(door, _attempt(door, "timeout", f"no answer within {waited:.1f} s"))
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
    attempt, connection = await _try(door, said, seconds, patience, secret)
    return door, attempt, connection


def _attempt(door: Door, outcome: str, detail: str = "") -> Attempt:
    return Attempt(
        address=door.address,
        port=door.port,
        door="side" if door.side else "master",
        outcome=outcome,  # type: ignore[arg-type]  # the literals of its callers
        detail=detail,
    )


async def _is_store(door: Door) -> bool:
    """Return whether a torch TCPStore listens there; the ping does not change it.

    Source: pytorch, torch/csrc/distributed/c10d/TCPStoreBackend.hpp (QueryType::VALIDATE, QueryType::PING).
    """
    nonce = secrets.token_bytes(4)
    try:
        reader, writer = await connection.within(connection.connect(door.address, door.port), _STORE_SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    try:
        writer.write(_STORE_PING + nonce)
        return await connection.within(reader.readexactly(len(nonce)), _STORE_SECONDS) == nonce
    except (OSError, EOFError, asyncio.TimeoutError):
        return False
    finally:
        writer.close()


def _turned_away(answer: Answer, nonce: str) -> tuple[str, str]:
    """Return the outcome and the detail of an attempt that was answered without a Welcome."""
    if answer.nonce != nonce:
        return "stranger", "a roll call that answered with a wrong nonce"
    if isinstance(answer, NotYet):
        return "waiting", f"the roll call there is for {answer.master}"
    if isinstance(answer, Elsewhere):
        return "elsewhere", answer.address
    return "stranger", answer.reason if isinstance(answer, Refused) else _UNKNOWING


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello, secret: bytes | None
) -> tuple[Answer, Seal | None, Seal | None]:
    """Do the handshake; return the answer and, with a secret, both sides' seals.

    Raises:
        ProtocolError: the answer, or a later frame, is invalid.
        EOFError: the other side has closed.
        OSError: the connection broke.
    """
    said = encode(hello)
    writer.write(said)
    heard = await framing.read_body(reader, framing.ANSWER_LIMIT_BYTES)
    answer = framing.decode(heard, protocol.answer_decoder)
    if isinstance(answer, Refused) or answer.nonce != hello.nonce:
        return answer, None, None
    if not isinstance(answer, Challenge):
        return (answer if secret is None else Refused(hello.nonce, _UNKNOWING)), None, None
    if secret is None:
        return Refused(hello.nonce, "the roll call there requires a DISTCHECK_TOKEN"), None, None
    from distcheck.rollcall import seal

    ours, theirs = seal.seals(secret, said[HEADER.size :], heard)
    writer.write(encode(Proof(), ours))
    answer = await framing.read(reader, protocol.answer_decoder, framing.ANSWER_LIMIT_BYTES, seal=theirs)
    return answer, ours, theirs


async def _try(
    door: Door, hello: Hello, seconds: float, patience: float, secret: bytes | None = None
) -> tuple[Attempt, Connection | None]:
    """Connect within `seconds` and wait `patience` seconds for an answer."""
    ended = partial(_attempt, door)
    connect = connection.connect if door.side else connection.connect_again
    try:
        reader, writer = await connection.within(connect(door.address, door.port), seconds)
    except (asyncio.TimeoutError, TimeoutError):  # our timeout, or the kernel's
        return ended("timeout", f"no answer within {seconds:.1f} s"), None
    except ConnectionRefusedError as error:
        return ended("refused", connection.words_of(error)), None
    except OSError as error:
        return ended("unreachable" if error.errno in _UNREACHABLE else "failed", connection.words_of(error)), None
    if door.only_connect:
        writer.close()
        return ended("agent"), None
    nonce = secrets.token_hex(8)
    keep = False
    try:
        named = msgspec.structs.replace(hello, nonce=nonce)
        answer, ours, theirs = await connection.within(_ask(reader, writer, named, secret), patience)
        if answer.nonce != nonce or not isinstance(answer, Welcome):
            return ended(*_turned_away(answer, nonce)), None
        keep = True
        return ended("met"), Connection(reader, writer, answer, ours, theirs)
    except asyncio.TimeoutError:
        store = not door.side and await _is_store(door)
        return ended(
            "silent", A_STORE if store else f"accepted the connection and sent nothing for {patience:.0f} s"
        ), None
    except ProtocolError as error:
        return ended("foreign", str(error)), None
    except (EOFError, OSError) as error:
        return ended("closed", str(error) or "accepted the connection and closed it"), None
    finally:
        if not keep:
            writer.close()
