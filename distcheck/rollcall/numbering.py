"""Numbers for the nodes of a command that names an endpoint only, in the order in which they arrive there.

`torchrun --rdzv-backend c10d` numbers its agents at the rendezvous, so all nodes type the same line. The host of the
endpoint is node 0. It listens on a side port that is derived from the rendezvous, never at the endpoint itself, where
an agent may listen already:

| from | message |
|---|---|
| host | ``distcheck numbers <name of the rendezvous, hashed> <nonce>`` |
| node | ``<proof of the token, or ->`` |
| host | ``<number of the node> <number of nodes> <proof, or ->``, when all came or none came any more |

A node that goes before it has its number leaves its place to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from distcheck.probe import open_files
from distcheck.rollcall import identity
from distcheck.rollcall.connection import within

_HEAD = "distcheck numbers"
_LONGEST = 512
_ANSWER_SECONDS = 3.0
_PAUSE_SECONDS = 0.3
LAST_CALL_SECONDS = 5.0
"""How long the host of an elastic job waits for one more node."""
_LONE_SECONDS = 1.0
_FILES_OF_ITS_OWN = 64


class Rendezvous(NamedTuple):
    """Where nodes meet, and how many."""

    name: str
    """By which the nodes of one job recognize each other."""
    addresses: tuple[str, ...]
    """Of the endpoint's host."""
    nodes: int
    fewest: int
    """The nodes that suffice."""
    secret: bytes | None = None


class Numbered(NamedTuple):
    """A node's number, and how many nodes there are; `came` may be fewer than are needed."""

    number: int
    nodes: int
    came: int


Note = Callable[[str], None]


async def number_by_arrival(meeting: Rendezvous, seconds: float, note: Note) -> Numbered | None:
    """Return this node's number; None if nobody gave it one within `seconds`.

    Args:
        meeting: where the nodes meet.
        seconds: how long to wait for the other nodes.
        note: is told once whom this node waits for.
    """
    until = asyncio.get_running_loop().time() + seconds
    _, before = open_files.raise_limit(meeting.nodes + _FILES_OF_ITS_OWN)
    try:
        return await _number(meeting, until, note)
    finally:
        open_files.restore_limit(before)


async def _number(meeting: Rendezvous, until: float, note: Note) -> Numbered | None:
    here = any(map(_is_here, meeting.addresses))
    for port in identity.side_ports(meeting.name) if here else ():
        sock = _listening(port)
        if sock is not None:
            return await _Host(meeting, sock, note).numbers(until)
        if (found := await _ask(meeting, "127.0.0.1", port, until)) is not None:
            return found  # another process of this machine is the host
    note(f"waiting for a number from {', '.join(meeting.addresses)}")
    while (left := until - asyncio.get_running_loop().time()) > 0:
        for port in identity.side_ports(meeting.name):
            for address in meeting.addresses:
                if (found := await _ask(meeting, address, port, until)) is not None:
                    return found
        await asyncio.sleep(min(_PAUSE_SECONDS, left))
    return None


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        return True
    return False


def _listening(port: int) -> socket.socket | None:
    """Return a socket that listens at all addresses, None if the port is taken."""
    for family, dual in ((socket.AF_INET6, True), (socket.AF_INET, False)):
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=dual)
    return None


class _Host:
    """Gives the numbers."""

    def __init__(self, meeting: Rendezvous, sock: socket.socket, note: Note) -> None:
        self._meeting, self._sock, self._note = meeting, sock, note
        self._there: dict[asyncio.StreamWriter, bytes] = {}
        """The nodes that came, in their order, with their proofs."""
        self._news = asyncio.Event()

    async def numbers(self, until: float) -> Numbered:
        loop, wanted = asyncio.get_running_loop(), self._meeting.nodes
        server = await asyncio.start_server(self._admit, sock=self._sock, limit=_LONGEST)
        async with server:
            last = loop.time()
            while 1 + len(self._there) < wanted:
                enough = 1 + len(self._there) >= self._meeting.fewest
                left = min(until, last + LAST_CALL_SECONDS if enough else until) - loop.time()
                if left <= 0:
                    break
                self._news.clear()
                self._note(f"{1 + len(self._there)} of {wanted} nodes came, waiting for the others")
                before = len(self._there)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), left)
                last = loop.time() if len(self._there) > before else last
            came = 1 + len(self._there)
            nodes = came if came >= self._meeting.fewest else wanted
            for number, (writer, proof) in enumerate(self._there.items(), start=1):
                writer.write(_sealed(self._meeting, f"{number} {nodes} {came}", proof))
            for writer in tuple(self._there):
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await asyncio.wait_for(writer.drain(), _LONE_SECONDS)
                writer.close()
        return Numbered(0, nodes, came)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = os.urandom(16).hex()
        try:
            writer.write(f"{_HEAD} {identity.public_key(self._meeting.name)} {nonce}\n".encode())
            proof = (await within(reader.readline(), _ANSWER_SECONDS)).strip()
            if not self._proves(nonce, proof) or 1 + len(self._there) >= self._meeting.nodes:
                return
            self._there[writer] = proof
            self._news.set()
            await reader.read()  # until it goes
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._there.pop(writer, None)
            self._news.set()
            writer.close()

    def _proves(self, nonce: str, proof: bytes) -> bool:
        if self._meeting.secret is None:
            return proof == b"-"
        from distcheck.rollcall import seal

        with contextlib.suppress(ValueError):
            return seal.is_knock(self._meeting.secret, nonce, bytes.fromhex(proof.decode("ascii", "replace")))
        return False


def _sealed(meeting: Rendezvous, said: str, proof: bytes) -> bytes:
    """Return the line in which the host of this job says it."""
    tag = b"-"
    if meeting.secret is not None:
        from distcheck.rollcall import seal

        tag = seal.answer(meeting.secret, meeting.name, said, proof).split(b" ")[0]
    return b"%s %s\n" % (said.encode(), tag)


async def _ask(meeting: Rendezvous, address: str, port: int, until: float) -> Numbered | None:
    """Return the number that the host at a port gives; None if it is not this job's, or does not answer."""
    loop = asyncio.get_running_loop()
    try:
        opening = asyncio.open_connection(address, port, limit=_LONGEST)
        reader, writer = await within(opening, min(_ANSWER_SECONDS, max(0.1, until - loop.time())))
    except (OSError, asyncio.TimeoutError):
        return None
    try:
        said = (await within(reader.readline(), _ANSWER_SECONDS)).decode("ascii", "replace").split(" ")
        if said[:3] != [*_HEAD.split(), identity.public_key(meeting.name)]:
            return None
        proof = b"-"
        if meeting.secret is not None:
            from distcheck.rollcall import seal

            proof = seal.knock(meeting.secret, said[3].strip()).hex().encode()
        writer.write(proof + b"\n")
        # The host answers by its own clock.
        answer = await within(reader.readline(), max(0.0, until - loop.time()) + LAST_CALL_SECONDS)
        number, nodes, came = map(int, answer.split()[:-1])
        sealed = answer == _sealed(meeting, f"{number} {nodes} {came}", proof)
        return Numbered(number, nodes, came) if sealed and 0 < number < nodes <= meeting.nodes else None
    except (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError):
        return None
    finally:
        writer.close()
