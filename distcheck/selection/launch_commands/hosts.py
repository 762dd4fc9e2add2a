"""Hosts with their ranks, as launchers that start them by ssh or MPI take them: a:4,b:4, or a file of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import RefusedError, UnreadableError

_HERE = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1"})
_LINE = re.compile(r"(\S+?)(?::(\d+))?(?:\s.*?\bslots\s*=\s*(\d+)\b.*|\s.*)?")

Pairs = tuple[tuple[str, int], ...]
"""Hosts, each with its slots; 0: none are given."""


def in_list(text: str, option: str) -> Pairs:
    """Return the hosts of a:4,b; raises UnreadableError."""
    found = [re.fullmatch(r"([^\s:]+)(?::(\d+))?", item.strip()) for item in text.split(",")]
    hosts = tuple((match[1], int(match[2] or 0)) for match in found if match)
    if len(hosts) < len(found):
        raise UnreadableError(f"{option} {text!r} is not a list of hosts")
    return hosts


def in_file(text: str, option: str) -> Pairs:
    """Return the hosts of a file with lines such as ``node1 slots=8`` or ``node1:8``."""
    lines = [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]
    found = [match for line in lines if (match := _LINE.fullmatch(line))]
    if len(found) < len(lines) or not found:
        raise UnreadableError(f"{option} is not a list of hosts")
    return tuple((match[1], int(match[3] or match[2] or 0)) for match in found)


def slots_in_all(hosts: Pairs) -> dict[str, int]:
    """Return the slots by host; a host without a number has one for each time that it is named."""
    slots: dict[str, int] = {}
    for host, given in hosts:
        slots[host] = slots.get(host, 0) + (given or 1)
    return slots


def filled(slots: Mapping[str, int], ranks: int, option: str) -> Pairs:
    """Return the ranks of each host where the first are filled before the next gets one.

    Raises:
        RefusedError: there are more ranks than slots.
    """
    found: list[tuple[str, int]] = []
    left = ranks
    for host, most in slots.items():
        if here := min(most, left):
            found.append((host, here))
            left -= here
    if left:
        raise RefusedError(f"{option} {ranks} is more than the {sum(slots.values())} slots of its hosts")
    return tuple(found)


def on_hosts(by: str, hosts: Pairs, starter: Literal["ssh", "mpi"], place: tuple[str, int] = ("", 0)) -> Stated:
    """Return the ranks that are started on these hosts, which meet at this address and port.

    They are this node's if it is the only host.
    """
    if {host for host, _ in hosts} <= _HERE:
        return Stated(by, str(sum(ranks for _, ranks in hosts)), master_addr=place[0], master_port=place[1])
    return Stated(by, hosts=hosts, starter=starter, master_addr=place[0], master_port=place[1])
