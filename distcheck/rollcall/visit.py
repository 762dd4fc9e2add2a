"""One connection to the leader: the Hello, with a token its proof, then the report, then messages.

It is a protocol of asyncio, not a stream: a task for each connection cost the leader half of its time.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Literal, Protocol

from distcheck.rollcall import framing, protocol
from distcheck.rollcall.follower import Follower, is_of, with_clock
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import (
    Challenge,
    Deflated,
    Elsewhere,
    FromFollower,
    Hello,
    NotYet,
    Ready,
    Refused,
    Report,
    Trouble,
    Welcome,
    hello_decoder,
)
from distcheck.rollcall.wire import HEADER, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from distcheck.rollcall.seal import Seal

_HELLO_SECONDS = 5.0
_REPORT_SECONDS = 10.0
_RECEIVED = bytearray(1 << 16)
"""Where all connections receive, one after the other; new memory for each read takes longer than the read."""

Next = Literal["hello", "proof", "report", "message", "nothing"]
"""What the other side may send next."""


class _Leader(Protocol):
    """What a visit asks of the leader: `rollcall.server.Server` says what each does."""

    on_trouble: Callable[[str], None]

    def arrive(self, visit: Visit) -> None: ...
    def leave(self, visit: Visit, unused_bytes: int) -> None: ...
    def trust(self, visit: Visit) -> None: ...
    def expect(self, size: int) -> None: ...
    def secret_for(self, hello: Hello) -> bytes | None: ...
    def answer(self, hello: Hello) -> Welcome | NotYet | Elsewhere | Refused: ...
    def share(self, word: FromFollower) -> None: ...
    def admit(self, visit: Visit, follower: Follower) -> None: ...


class Visit(asyncio.BufferedProtocol):
    """Receives the frames of one connection; whatever a stranger sends ends only its own connection."""

    def __init__(self, leader: _Leader) -> None:
        self._leader = leader
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # asyncio sets it before any data
        self._unread = bytearray()
        self._length: int | None = None
        """The length of the body that is being received."""
        self._next: Next = "hello"
        self._timer: asyncio.TimerHandle | None = None
        self._hello: Hello = None  # type: ignore[assignment]  # the first message
        self._seals: tuple[Seal, Seal] | None = None
        """The follower's and ours."""
        self._welcomed = 0.0
        self._announced = 0
        """The size of a report that is being received."""
        self._follower: Follower | None = None

    @property
    def owes_a_report(self) -> bool:
        """Whether the other side was admitted and has not reported yet."""
        return self._next == "report"

    @property
    def ranks(self) -> int:
        """For how many ranks the other side has reported."""
        return 0 if self._follower is None else len(self._follower.ranks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the Hello."""
        self._transport = transport  # type: ignore[assignment]  # a stream's
        self._await("hello", _HELLO_SECONDS)
        self._leader.arrive(self)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  # asyncio's name
        """Return where to receive."""
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        """Take the frames that are complete."""
        self._unread += memoryview(_RECEIVED)[:nbytes]
        try:
            while (body := self._next_body()) is not None:
                self._take(body)
        except ProtocolError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        """Report a lost follower."""
        self._await("nothing", None)
        self._leader.leave(self, self._announced)
        if self._follower is not None:
            self._follower.leave()
            self._leader.on_trouble(f"lost the connection to {self._follower.report.node.name}")

    def close(self) -> None:
        """Close the connection; without a follower, at once."""
        if self._follower is None:
            self._transport.abort()
        else:
            self._transport.close()

    def _await(self, what: Next, seconds: float | None) -> None:
        """Expect this next, within `seconds`; None: at any time."""
        self._next = what
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._transport.abort)

    def _next_body(self) -> bytes | None:
        """Return the body of the next frame, None if it is not complete."""
        if self._length is None:
            if len(self._unread) < HEADER.size:
                return None
            self._length = framing.length_of(bytes(self._unread[: HEADER.size]), _LIMIT_BYTES[self._next])
            if self._next in {"report", "message"}:
                self._leader.expect(self._length)
            if self._next == "report":
                self._announced = self._length
        end = HEADER.size + self._length
        if len(self._unread) < end:
            return None
        body = bytes(self._unread[HEADER.size : end])
        del self._unread[:end]
        self._length = None
        return body

    def _take(self, body: bytes) -> None:
        if self._next == "hello":
            self._take_hello(body)
            return
        if self._seals is not None:
            body = self._seals[0].open(body)
        if self._next == "proof":
            framing.decode(body, protocol.proof_decoder)
            self._answer()
        elif self._next == "report":
            self._take_report(body)
        elif self._follower is not None:
            self._take_message(body, self._follower)

    def _take_hello(self, body: bytes) -> None:
        """Answer the Hello; with a token, first make the follower prove that it knows it.

        The follower proves it first, so that a mere attempt yields nothing that helps to guess the token.
        """
        self._hello = framing.decode(body, hello_decoder)
        secret = self._leader.secret_for(self._hello)
        if secret is None:
            self._answer()
            return
        from distcheck.rollcall import seal

        challenge = encode(Challenge(self._hello.nonce, os.urandom(16).hex()))
        self._transport.write(challenge)
        self._seals = seal.seals(secret, body, challenge[HEADER.size :])
        self._await("proof", _HELLO_SECONDS)

    def _answer(self) -> None:
        answer = self._leader.answer(self._hello)
        self._welcomed = time.time()
        self._transport.write(encode(answer, self._seals[1] if self._seals else None))
        if not isinstance(answer, Welcome):
            self._await("nothing", _HELLO_SECONDS)
            self._transport.close()
            return
        self._leader.trust(self)
        self._await("report", _REPORT_SECONDS)

    def _take_report(self, body: bytes) -> None:
        heard = time.time()
        report = self._message(body)
        if not isinstance(report, Report) or not is_of(report, self._hello):
            raise ProtocolError("the report does not match the Hello")
        follower = Follower(self._hello, with_clock(report, self._welcomed, heard), self._transport, self._seals)
        self._leader.admit(self, follower)
        self._follower, self._announced = follower, 0
        self._await("message", None)

    def _take_message(self, body: bytes, follower: Follower) -> None:
        word = self._message(body)
        if isinstance(word, Trouble):
            self._leader.on_trouble(word.reason)
        elif isinstance(word, Ready):
            follower.ready.set()
        else:
            follower.take(word)

    def _message(self, body: bytes) -> FromFollower:
        """Return the message in a body, decompressed; its whole size counts."""
        word = framing.decode(body, protocol.wrapped_decoder)
        if isinstance(word, Deflated):
            whole = framing.inflate(word.data)
            more = max(0, len(whole) - len(body))
            self._leader.expect(more)
            if self._next == "report":
                self._announced += more
            word = framing.decode(whole, protocol.follower_decoder)
        self._leader.share(word)
        return word


_LIMIT_BYTES: dict[Next, int] = {
    "hello": framing.HELLO_LIMIT_BYTES,
    "proof": framing.ANSWER_LIMIT_BYTES,
    "report": framing.FRAME_LIMIT_BYTES,
    "message": framing.FRAME_LIMIT_BYTES,
    "nothing": framing.HELLO_LIMIT_BYTES,
}
