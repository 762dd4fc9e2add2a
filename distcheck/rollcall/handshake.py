"""The follower's side of a handshake: one attempt at one endpoint, and the connection that results."""

from __future__ import annotations

import asyncio
import errno
import secrets
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.network import A_STORE, Attempt
from distcheck.rollcall import connection, framing, protocol
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

_STORE_SECONDS = 0.5
_STORE_PING = b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d"
_UNKNOWING = "a roll call without this DISTCHECK_TOKEN"
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}


class Door(NamedTuple):
    """One endpoint where the leader may listen."""

    address: str
    port: int
    side: bool
    only_connect: bool = False
    """True where another program rightly listens, such as torchrun's agent: connect, but send nothing."""
    found: Found = "master"

    def attempt(self, outcome: str, detail: str = "") -> Attempt:
        """Return the record of an attempt at this endpoint."""
        return Attempt(
            address=self.address,
            port=self.port,
            door="side" if self.side else "master",
            outcome=outcome,  # type: ignore[arg-type]  # the literals of its callers
            detail=detail,
        )


class Connection(NamedTuple):
    """A connection after the handshake: the leader has admitted this process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    welcome: Welcome
    ours: Seal | None = None
    theirs: Seal | None = None

    def say(self, word: Word) -> None:
        """Send a message."""
        self.writer.write(encode(word, self.ours, deflates=True))

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
    if isinstance(answer, Refused):
        return "full" if answer.full else "stranger", answer.reason
    return "stranger", _UNKNOWING


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


async def shake_hands(
    door: Door, hello: Hello, seconds: float, patience: float, secret: bytes | None = None
) -> tuple[Attempt, Connection | None]:
    """Connect within `seconds` and wait `patience` seconds for an answer."""
    ended = door.attempt
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
