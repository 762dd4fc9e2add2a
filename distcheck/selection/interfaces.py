"""Which network interfaces NCCL and Gloo take on a node, worked out as the libraries do it.

NCCL (src/misc/socket.cc, src/os/linux.cc, src/misc/utils.cc, src/bootstrap.cc): NCCL_SOCKET_IFNAME of more than one
character decides alone. A leading ``^`` excludes, a ``=`` after that asks for whole names; commas separate what names
begin with, a colon ends an item. Without it ``ib*``, then the subnet of NCCL_COMM_ID, then all but ``docker*``, ``lo*``
and ``virbr*``, then ``docker*``, ``lo*``, ``virbr*``. Of every name counts the first address that the kernel lists, if
the interface is running; the bootstrap takes the first of all, the socket transport takes them all.

Gloo (torch's ProcessGroupGloo; gloo/transport/tcp/device.cc; measured with torch 2.13): GLOO_SOCKET_IFNAME of more than
one character is a comma list of exact names; without it the first address of the own host name that can be bound, else
127.0.0.1.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from distcheck.facts import Interface, Missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

IFNAME = "NCCL_SOCKET_IFNAME"
FAMILY = "NCCL_SOCKET_FAMILY"
COMM_ID = "NCCL_COMM_ID"
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
"""What NCCL_SOCKET_FAMILY may be; any other text is ignored."""
_MOST = 16
"""Items of a list, and interfaces, that NCCL takes at most (MAX_IFS in src/include/socket.h)."""
_LOOPBACK = "127.0.0.1"
_LOOPBACK_6 = bytes(15) + b"\1"
_LOOPBACK_MTU = 65536


def settings(environment: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Return NCCL's settings that decide over the interface: a variable, even an empty one, goes before the files."""
    return {
        name: environment.get(name, files.get(name, ""))
        for name in (IFNAME, FAMILY, COMM_ID)
        if name in environment or name in files
    }


def decides(value: str | None) -> bool:
    """Whether a value of NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME is looked at: one character alone is not."""
    return value is not None and len(value) > 1


def nccl(interfaces: Sequence[Interface], settings: Mapping[str, str]) -> tuple[Interface, ...]:
    """Return the interfaces that NCCL takes, one address for each name; the first is its bootstrap's.

    Empty when NCCL finds none and gives up. A host name in NCCL_COMM_ID, which only a resolver could read, counts as
    unset.
    """
    taken = _taken(interfaces, settings)
    place = settings.get(COMM_ID)
    if place is None:
        return taken
    if len(place) <= 1:
        return ()
    meeting = _numeric(place)
    if meeting is None:
        return taken
    # The bootstrap then looks at nothing but the subnet, not even at NCCL_SOCKET_IFNAME.
    first = _near(interfaces, meeting)
    return (*first, *(i for i in taken if i.name != first[0].name)) if first else ()


def gloo(
    interfaces: Sequence[Interface], environment: Mapping[str, str], own_name_binds: str | Missing
) -> tuple[Interface, ...] | Missing:
    """Return the addresses on which Gloo listens, Missing with torch's error when it fails to find one."""
    value = environment.get(GLOO_IFNAME, "")
    if not decides(value):
        return (_own(interfaces, own_name_binds),)
    taken: list[Interface] = []
    for name in value.removesuffix(",").split(","):
        if not name:
            return Missing(reason="GlooDeviceFactory::makeTCPDevice(): interface or hostname can't be empty")
        first = next((i for i in interfaces if i.name == name), None)
        if first is None:
            return Missing(reason=f"Unable to find address for: {name}")
        taken.append(first)
    return tuple(taken)


def matches(name: str, value: str) -> bool:
    """Whether NCCL takes an interface of this name, given a value of NCCL_SOCKET_IFNAME."""
    whole = value.removeprefix("^").startswith("=")
    items = items_of(value)
    hit = not items or any(name == item if whole else name.startswith(item) for item in items)
    return hit != value.startswith("^")


@lru_cache(256)
def items_of(value: str) -> tuple[str, ...]:
    """Return the names, or their beginnings, in a value of NCCL_SOCKET_IFNAME, without the ports that may follow."""
    listed = value.removeprefix("^").removeprefix("=")
    heads = (entry.partition(":")[0] for entry in listed.split(","))
    return tuple(head for head in heads if head)[:_MOST]


def packed(address: str) -> bytes | None:
    """Return the 4 or 16 bytes of an address, None of anything else: ten times as fast as ip_address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address)
    except (OSError, ValueError):
        return None


def unpacked(address: bytes) -> str:
    """Write the 4 or 16 bytes of an address in the one usual way."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def subnet(interface: Interface) -> str | None:
    """Return the subnet of an interface's address, None where the facts do not tell it."""
    own, bits = packed(interface.address), interface.prefix_bits
    if own is None or bits is None or not 0 <= bits <= 8 * len(own):
        return None
    host = 8 * len(own) - bits
    first = (int.from_bytes(own, "big") >> host << host).to_bytes(len(own), "big")
    return f"{unpacked(first)}/{bits}"


def _taken(interfaces: Sequence[Interface], settings: Mapping[str, str]) -> tuple[Interface, ...]:
    family = FAMILIES.get(settings.get(FAMILY, ""))
    usable = [i for i in interfaces if i.up and _usable(i, family)]
    value = settings.get(IFNAME, "")
    if decides(value):
        return _matching(usable, value)
    if found := _matching(usable, "ib"):
        return found
    meeting = _numeric(settings.get(COMM_ID, ""))
    if meeting is not None and (found := _near(interfaces, meeting)):
        return found
    tries = (_matching(usable, names) for names in ("^docker,lo,virbr", "docker", "lo", "virbr"))
    return next((found for found in tries if found), ())


def _usable(interface: Interface, family: int | None) -> bool:
    own = packed(interface.address)
    return own is not None and family in {None, 4 if len(own) == 4 else 6} and own != _LOOPBACK_6


def _matching(usable: Iterable[Interface], value: str) -> tuple[Interface, ...]:
    first: dict[str, Interface] = {}
    for interface in usable:
        if matches(interface.name, value):
            first.setdefault(interface.name, interface)
    return tuple(first.values())[:_MOST]


def _near(interfaces: Iterable[Interface], meeting: tuple[IPv4Address | IPv6Address, str]) -> tuple[Interface, ...]:
    """Return the first interface, running or not, in whose subnet an address with its zone lies."""
    ip, zone = meeting
    for interface in interfaces:
        net = subnet(interface)
        if net is None or ip not in ip_network(net):
            continue
        own = ip_of(interface.address)
        scope = interface.name if own is not None and own.version == 6 and own.is_link_local else ""
        if scope == zone:
            return (interface,)
    return ()


def _numeric(place: str) -> tuple[IPv4Address | IPv6Address, str] | None:
    """Return the address, and its zone, of ``<IPv4>:<port>`` or ``[<IPv6>%<zone>]:<port>``, None of anything else."""
    if place.startswith("["):
        text, bracket, _ = place[1:].partition("]")
        text, _, zone = text.partition("%")
        ip = ip_of(text) if bracket else None
        return (ip, zone) if ip is not None and ip.version == 6 else None
    ip = ip_of(place.split(",", maxsplit=1)[0].partition(":")[0])
    return None if ip is None else (ip, "")


def _own(interfaces: Sequence[Interface], own_name_binds: str | Missing) -> Interface:
    address = _LOOPBACK if isinstance(own_name_binds, Missing) else own_name_binds
    here = next((i for i in interfaces if i.address == address), None)
    if here is not None:
        return here
    ip = ip_of(address)
    # All of 127.0.0.0/8 can be bound, although only 127.0.0.1 is listed.
    return Interface("lo" if ip is not None and ip.is_loopback else "", address, up=True, mtu_bytes=_LOOPBACK_MTU)


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, None for text that is none, as facts of a stranger may hold."""
    try:
        return ip_address(text)
    except ValueError:
        return None
