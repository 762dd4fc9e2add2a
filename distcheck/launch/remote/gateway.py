"""A gateway of the tree, on a node: ``python -m distcheck.launch.remote.gateway -``.

It starts the probes of its share of the hosts by ssh, with the engine of the starting machine, and passes their lines
both ways. ClusterShell's own gateway is not used: it writes the same standard input to all its hosts, does not run
`--setup`, and leaves a log in /tmp.

| to the gateway | meaning |
|---|---|
| the share, in base64 | the hosts, their command, and the deadline |
| `start N` | log in to host N of the share |
| `write N DATA` | pass on to its standard input; the data is in base64 |
| `end N` | end this login at once: the probe has no assignment, or will not come |
| `close` | pass on to all probes that have an assignment |
| the end of input | end the input of all probes, and go |

A line from the gateway begins with a mark, so that what a login shell prints is not taken for one: `here VERSION`,
`N out LINE`, `N error LINE` or `N code CODE`.

Whatever ends this process ends its probes: their standard input comes from here, and its end means stop.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import select
import signal
import sys
import time
from typing import Any, Literal, NamedTuple

import msgspec
from ClusterShell.Event import EventHandler
from ClusterShell.Worker.Worker import StreamWorker

from distcheck import __version__
from distcheck.launch import signals
from distcheck.launch.remote import engine
from distcheck.launch.remote.engine import Starts, Wish
from distcheck.launch.remote.spec import CLOSE, Command

MODULE = "distcheck.launch.remote.gateway"
_MARK = b"\x1eDCG1 "
_ANSWER = re.compile(rb"\x1eDCG1 (here|\d{1,6}) (out|error|code|\S{1,40})(?: (.*))?", re.DOTALL)
_LAST_WORDS_SECONDS = 1.5
"""Between the end of input and the end of logins that are still open: probes report for a second."""
_INPUT = "input"
_BROKEN = 70

Kind = Literal["out", "error", "code"]


class Portion(msgspec.Struct, frozen=True):
    """What a gateway needs to know first."""

    line: str
    """The command of a probe."""
    hosts: tuple[str, ...]
    connect_seconds: float
    seconds: float
    """After this long the gateway ends, whatever the starting machine does."""


class Reply(NamedTuple):
    """A line from a gateway: from one host of its share, or from itself."""

    host: int | None
    kind: Kind = "out"
    words: bytes = b""
    version: str = ""


# -- the lines to a gateway, and from it -----------------------------------------------------------------------------


def first(share: Portion) -> bytes:
    """Return the first line to a gateway."""
    return base64.b64encode(msgspec.msgpack.encode(share)) + b"\n"


def start(host: int) -> bytes:
    """Return the line that makes a gateway log in to a host."""
    return b"start %d\n" % host


def write(host: int, data: bytes) -> bytes:
    """Return the line with data for a host's standard input."""
    return b"write %d %b\n" % (host, base64.b64encode(data))


def end(host: int) -> bytes:
    """Return the line that makes a gateway end a login."""
    return b"end %d\n" % host


def answer(line: bytes) -> Reply | None:
    """Return what a gateway's line says; None if it is other output."""
    found = _ANSWER.fullmatch(line)
    if found is None:
        return None
    if found[1] == b"here":
        return Reply(None, version=found[2].decode("ascii", "replace"))
    words = found[3] or b""
    if found[2] not in {b"out", b"error", b"code"} or (found[2] == b"code" and not words.isdigit()):
        return None
    return Reply(int(found[1]), found[2].decode(), words)  # type: ignore[arg-type]


# -- the process on the node -----------------------------------------------------------------------------------------


class _Relay:
    """Passes on the lines of the probes, and does what the starting machine asks."""

    def __init__(self, share: Portion, fd: int) -> None:
        self._share, self._fd = share, fd
        self._numbers = {host: number for number, host in enumerate(share.hosts)}
        self._assigned: set[str] = set()
        self._starts: Starts | None = None
        self._ended_at: float | None = None

    def begun(self, starts: Starts) -> None:
        """Listen to the starting machine while the commands run."""
        self._starts = starts
        reader = StreamWorker(handler=_Input(self))
        reader.set_reader(_INPUT, os.dup(0))
        starts.task.schedule(reader)
        self.send(b"here %b" % __version__.encode())

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Pass on a line of a probe."""
        self.send(b"%d %b %b" % (self._numbers[key], b"error" if error else b"out", words))

    def ended(self, key: str, code: int) -> None:
        """Pass on that a login has ended."""
        self.send(b"%d code %d" % (self._numbers[key], code))

    def asked(self, line: bytes) -> None:
        """Do what a line from the starting machine asks."""
        starts = self._starts
        word, *rest = line.split()
        if starts is None:
            return
        if word == CLOSE.strip():
            for host in self._assigned:
                starts.write(host, CLOSE)
            return
        host = self._share.hosts[int(rest[0])]
        if word == b"start":
            starts.add(Command(key=host, line=self._share.line))
        elif word == b"write":
            self._assigned.add(host)
            starts.write(host, base64.b64decode(rest[1]))
        elif word == b"end":
            starts.kill(host)

    def end(self) -> None:
        """End with the probes: the starting machine sends no more."""
        self._ended_at = time.monotonic()

    def wish(self) -> Wish:
        """Return what the engine should do."""
        if self._ended_at is None:
            return "go on"
        return "end" if time.monotonic() >= self._ended_at + _LAST_WORDS_SECONDS else "stop"

    def send(self, line: bytes) -> None:
        """Write a line to the starting machine; one that is gone is not an error, for the input ends then."""
        rest = _MARK + line + b"\n"
        with contextlib.suppress(OSError):
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:
                    select.select((), (self._fd,), ())


class _Input(EventHandler):  # type: ignore[misc]  # ClusterShell has no types
    """Reads what the starting machine asks."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay

    def ev_read(self, _worker: Any, _node: str, _sname: str, msg: bytes) -> None:
        if msg.strip():
            self._relay.asked(msg)

    def ev_close(self, _worker: Any, _timedout: bool) -> None:  # noqa: FBT001 ClusterShell's signature
        self._relay.end()


def main() -> int:
    """Run the gateway; return the exit code."""
    fd = os.dup(1)
    os.dup2(2, 1)  # other output must not mix with the answers
    with open(0, "rb", buffering=0, closefd=False) as line:  # the next lines are ClusterShell's
        try:
            share = msgspec.msgpack.decode(base64.b64decode(line.readline()), type=Portion)
        except (msgspec.MsgspecError, ValueError) as error:
            sys.stderr.write(f"distcheck {__version__}: cannot read the share of a gateway: {error}\n")
            return _BROKEN
    signal.alarm(max(1, math.ceil(share.seconds)))
    relay = _Relay(share, fd)
    engine.run(
        (),
        relay,
        relay.wish,
        connect_seconds=share.connect_seconds,
        environment={},
        begun=relay.begun,
        later=len(share.hosts),
    )
    return 0


if __name__ == "__main__":
    signals.reset()
    sys.exit(main())
