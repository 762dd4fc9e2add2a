"""The peer round: processes try each other, both ways, on ports that the kernel chose, as NCCL and Gloo will."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from distcheck.facts import PeerTrial
from distcheck.rollcall import protocol
from distcheck.rollcall.protocol import PeerDoor, Roster

_ALL_PAIRS_UP_TO = 64
_AT_ONCE = 64


class PeerListener:
    """A door for peers: says back the roster's nonce once it is known, whoever asks."""

    def __init__(self) -> None:
        self._nonce: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.port = 0

    async def open(self, address: str) -> None:
        """Listen on a port of the kernel's choice at this address."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.create_server((address, 0), family=family, backlog=1024)
        protocol.prepare(sock)
        self.address, self.port = address, int(sock.getsockname()[1])
        self._server = await asyncio.start_server(self._answer, sock=sock)

    def expect(self, nonce: str) -> None:
        """Answer peers with this roster's nonce."""
        if not self._nonce.done():
            self._nonce.set_result(nonce.encode())

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        self._nonce.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.TimeoutError):
            writer.write(await asyncio.wait_for(asyncio.shield(self._nonce), 10))
            await writer.drain()
        writer.close()


def choose(uid: str, doors: tuple[PeerDoor, ...]) -> tuple[PeerDoor, ...]:
    """Return the doors that a process tries: all others up to 64, beyond that those 1, 2, 4, 8, … places further on.

    With the doubling distances every process is tried by as many others as it tries itself.
    """
    others = tuple(d for d in doors if d.uid != uid)
    if len(doors) <= _ALL_PAIRS_UP_TO:
        return others
    place = next(i for i, d in enumerate(doors) if d.uid == uid)
    steps = (1 << n for n in range(len(doors).bit_length()))
    return tuple(doors[(place + step) % len(doors)] for step in steps if step < len(doors))


async def try_peers(uid: str, roster: Roster) -> tuple[PeerTrial, ...]:
    """Try the doors of the roster that this process should try."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def trial(door: PeerDoor) -> PeerTrial:
        async with limit:
            return await _try(uid, door, roster)

    return tuple(await asyncio.gather(*(trial(d) for d in choose(uid, roster.doors))))


async def _try(uid: str, door: PeerDoor, roster: Roster) -> PeerTrial:
    loop = asyncio.get_running_loop()
    start = loop.time()

    def ended(outcome: str, detail: str = "") -> PeerTrial:
        return PeerTrial(
            source=uid,
            target=door.uid,
            address=door.address,
            port=door.port,
            outcome=outcome,  # type: ignore[arg-type]  # the literals below
            seconds=loop.time() - start,
            detail=detail,
        )

    writer = None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(door.address, door.port), roster.seconds)
        said = await asyncio.wait_for(reader.readexactly(len(roster.nonce)), roster.seconds)
        return ended("met") if said == roster.nonce.encode() else ended("foreign", protocol.banner(said))
    except asyncio.TimeoutError:
        return ended("timeout", f"no answer within {roster.seconds:.1f} s")
    except ConnectionRefusedError as error:
        return ended("refused", str(error))
    except asyncio.IncompleteReadError as error:
        return ended("foreign", protocol.banner(error.partial))
    except OSError as error:
        unreachable = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
        return ended("unreachable" if unreachable else "failed", str(error))
    finally:
        if writer is not None:
            writer.close()
