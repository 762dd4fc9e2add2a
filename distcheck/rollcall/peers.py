"""The peer round: processes try each other, both ways, on ports that the kernel chose, as NCCL and Gloo will."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence

from distcheck.facts import PeerTrial
from distcheck.rollcall import protocol
from distcheck.rollcall.protocol import PeerDoor, Roster

_ALL_PAIRS_UP_TO = 64
_AT_ONCE = 64
_BACKLOG = 1024
_ROSTER_SECONDS = 10.0


class PeerListener:
    """A door for peers: says back the roster's nonce once it is known, whoever asks."""

    def __init__(self) -> None:
        self._nonce: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.port = 0

    async def open(self, address: str) -> None:
        """Listen on a port of the kernel's choice at this address; at a loopback one, on every address.

        Whoever meets its own host through the loopback has to be reached by other hosts all the same.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        where = ("::" if ":" in address else "0.0.0.0") if protocol.is_loopback(address) else address
        sock = socket.create_server((where, 0), family=family, backlog=_BACKLOG)
        protocol.prepare(sock)
        self.address, self.port = address, int(sock.getsockname()[1])
        self._server = await asyncio.start_server(self._answer, sock=sock, backlog=_BACKLOG)

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
            writer.write(await asyncio.wait_for(asyncio.shield(self._nonce), _ROSTER_SECONDS))
            await writer.drain()
        writer.close()


def choose(doors: Sequence[PeerDoor]) -> dict[str, tuple[PeerDoor, ...]]:
    """Return which doors every process tries: all others up to 64, beyond that those 1, 2, 4, 8, … places further on.

    With the doubling distances every process is tried by as many others as it tries itself.
    """
    count = len(doors)
    if count <= _ALL_PAIRS_UP_TO:
        return {d.uid: tuple(other for other in doors if other is not d) for d in doors}
    steps = [1 << n for n in range(count.bit_length()) if 1 << n < count]
    return {d.uid: tuple(doors[(place + step) % count] for step in steps) for place, d in enumerate(doors)}


async def try_peers(uid: str, roster: Roster, seconds: float | None = None) -> tuple[PeerTrial, ...]:
    """Try the doors of a roster, each for the seconds that the roster gives, or fewer."""
    limit = asyncio.Semaphore(_AT_ONCE)
    most = roster.seconds if seconds is None else min(seconds, roster.seconds)

    async def trial(door: PeerDoor) -> PeerTrial:
        async with limit:
            return await _try(uid, door, roster.nonce.encode(), most)

    return tuple(await asyncio.gather(*(trial(d) for d in roster.doors)))


async def _try(uid: str, door: PeerDoor, nonce: bytes, seconds: float) -> PeerTrial:
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
        ipaddress.ip_address(door.address)  # a name would be asked of a resolver, which can block
        reader, writer = await protocol.within(asyncio.open_connection(door.address, door.port), seconds)
        said = await protocol.within(reader.readexactly(len(nonce)), seconds)
        return ended("met") if said == nonce else ended("foreign", protocol.banner(said))
    except (asyncio.TimeoutError, TimeoutError):  # ours, or the kernel's
        return ended("timeout", f"no answer within {seconds:.1f} s")
    except ConnectionRefusedError as error:
        return ended("refused", str(error))
    except asyncio.IncompleteReadError as error:
        return ended("foreign", protocol.banner(error.partial))
    except ValueError as error:
        return ended("failed", str(error))
    except OSError as error:
        unreachable = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
        return ended("unreachable" if unreachable else "failed", str(error))
    finally:
        if writer is not None:
            writer.close()
