"""The TCP connections of a process, by /proc/PID/net/tcp and the sockets among its open files."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from distcheck.facts.hang import Unanswered
from distcheck.probe.kernel_files import link_name

_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
_ESTABLISHED, _SYN_SENT = 1, 2
_MOST_LINES = 20000


class TcpConnection(NamedTuple):
    """A line of /proc/PID/net/tcp: addresses with ports, and what the kernel counts."""

    local: str
    remote: str
    state: int
    queued_bytes: int
    retransmits: int
    inode: int


def connection(pid: int, inode: str) -> TcpConnection | None:
    """Return the TCP connection of a socket in a process's network namespace."""
    lines = (fields for fields in _lines(pid) if fields[9:10] == [inode])
    return next(filter(None, map(parsed, lines)), None)


def unanswered(pid: int) -> tuple[Unanswered, ...]:
    """Return the connections of a process whose other end does not acknowledge what was sent."""
    retransmitting = (fields for fields in _lines(pid) if len(fields) > 6 and fields[6].strip("0"))
    found = filter(None, map(parsed, retransmitting))  # few of thousands: reading addresses takes longest
    suspects = [c for c in found if c.state in {_ESTABLISHED, _SYN_SENT} and c.retransmits]
    mine = inodes(pid) if suspects else frozenset()
    return tuple(Unanswered(c.local, c.remote, c.retransmits, c.queued_bytes) for c in suspects if c.inode in mine)


def inodes(pid: int) -> frozenset[int]:
    """Return the sockets of a process."""
    links = map(link_name, Path(f"/proc/{pid}/fd").glob("*"))
    return frozenset(int(found[1]) for link in links if (found := _SOCKET.match(link)))


def _lines(pid: int) -> Iterator[list[str]]:
    """Yield the fields of each line about TCP in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), Path(f"/proc/{pid}/net/{name}").open() as file:
            yield from (line.split() for line in islice(file, 1, _MOST_LINES))


def parsed(fields: list[str]) -> TcpConnection | None:
    """Return the connection that the fields of a line describe, None if they do not."""
    try:
        return TcpConnection(
            _address(fields[1]), _address(fields[2]), int(fields[3], 16), int(fields[4].partition(":")[0], 16),
            int(fields[6], 16), int(fields[9]),
        )  # fmt: skip
    except (IndexError, ValueError, struct.error):
        return None


def _address(text: str) -> str:
    """Return an address as people write it; the kernel prints its words in the machine's byte order."""
    host, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(host[n : n + 8], 16)) for n in range(0, len(host), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, raw).removeprefix("::ffff:")
    return f"{f'[{shown}]' if ':' in shown else shown}:{int(port, 16)}"
