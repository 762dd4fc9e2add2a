"""Read the listening TCP ports from the kernel; binding one could disturb a job's start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import chain, islice, takewhile
from pathlib import Path

from distcheck.facts.base import Missing

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = b"0A"
_USUAL = 29500
"""torchrun's default MASTER_PORT (https://docs.pytorch.org/docs/stable/elastic/run.html)."""
_LOWEST, _LINUX_EPHEMERAL = 1024, 32768


def free_near(
    port: int | None, unprivileged: int | Missing, ephemeral: tuple[int, int] | Missing, number: int = 2
) -> tuple[int, ...]:
    """Return unused ports, the nearest above `port` first; empty if the kernel hides them.

    They need no privilege and lie below the ephemeral range, where outgoing connections do not take them.
    """
    taken = {number for number, _ in listeners()}
    if not taken and not _TABLES[0].exists():
        return ()
    low = max(_LOWEST, _LOWEST if isinstance(unprivileged, Missing) else unprivileged)
    high = (_LINUX_EPHEMERAL if isinstance(ephemeral, Missing) else ephemeral[0]) - 1
    near = port if port is not None and low <= port <= high else max(low, min(_USUAL, high + 1) - 1)
    candidates = chain(range(near + 1, high + 1), range(near - 1, low - 1, -1))
    return tuple(islice((free for free in candidates if free not in taken), number))


def listeners() -> Iterator[tuple[int, int]]:
    """Yield the port and user id of every listening socket in this network namespace.

    The kernel lists listening sockets before all others (net/ipv4/tcp_ipv4.c, tcp_seq_start), so the connections of a
    busy node need not be read.
    """
    for table in _TABLES:
        try:
            with table.open("rb") as lines:
                next(lines, b"")
                for line in lines:
                    fields = line.split()
                    if len(fields) < 8 or fields[3] != _LISTENS:
                        break
                    yield int(fields[1].rpartition(b":")[2], 16), int(fields[7])
        except (OSError, ValueError):
            continue


def listens_at(port: int, host: str) -> bool:
    """Whether a socket listens on a port at this address, or at all addresses; '' for any address.

    Addresses are in hexadecimal, in words of 32 bits in the byte order of the host.
    """
    for table in _TABLES:
        with suppress(OSError, ValueError), table.open("rb") as lines:
            next(lines, b"")
            for fields in takewhile(lambda fields: fields[3:4] == [_LISTENS], map(bytes.split, lines)):
                address, _, number = fields[1].rpartition(b":")
                if int(number, 16) == port and (not host or not int(address, 16) or _address(address) == host):
                    return True
    return False


def _address(text: bytes) -> str:
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)


def listening_user(port: int) -> str:
    """Return the owner of a port's listening socket, even of a hidden process; '' if unknown."""
    number = next((uid for listening, uid in listeners() if listening == port), None)
    if number is None:
        return ""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return f"user {number}"
