"""Which network interfaces NCCL and Gloo use on a node, by the libraries' own rules.

NCCL (src/misc/socket.cc, src/os/linux.cc, src/misc/utils.cc, src/bootstrap.cc): NCCL_SOCKET_IFNAME of more than one
character decides alone. A leading ``^`` excludes, a ``=`` after that requires whole names; commas separate name
prefixes, and a colon ends an item. Without it NCCL tries ``ib*``, then the subnet of NCCL_COMM_ID, then all but
``docker*``, ``lo*`` and ``virbr*``, then ``docker*``, ``lo*``, ``virbr*``. For each name it uses the first address that
the kernel lists, if the interface is running. The bootstrap uses the first interface, the socket transport all of them.

Gloo (torch's ProcessGroupGloo; gloo/transport/tcp/device.cc; measured with torch 2.13): GLOO_SOCKET_IFNAME of more than
one character is a comma-separated list of exact names. Without it Gloo uses the first address of the host's own name
that can be bound, else 127.0.0.1.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

IFNAME = "NCCL_SOCKET_IFNAME"
FAMILY = "NCCL_SOCKET_FAMILY"
COMM_ID = "NCCL_COMM_ID"
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
"""Valid values of NCCL_SOCKET_FAMILY; NCCL ignores any other text."""
_MOST = 16
"""NCCL's limit for items of a list and for interfaces (MAX_IFS in src/include/socket.h)."""
_LOOPBACK = "127.0.0.1"
_LOOPBACK_6 = bytes(15) + b"\1"
_LOOPBACK_MTU = 65536


def settings(environment: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Return NCCL's interface settings; a variable, even an empty one, overrides the files."""
    return {
        name: environment.get(name, files.get(name, ""))
        for name in (IFNAME, FAMILY, COMM_ID)
        if name in environment or name in files
    }


def decides(value: str | None) -> bool:
    """Return whether the libraries read this interface variable: one character is ignored."""
    return value is not None and len(value) > 1


def nccl(interfaces: Sequence[Interface], settings: Mapping[str, str]) -> tuple[Interface, ...]:
    """Return the interfaces that NCCL uses, one address per name, the bootstrap's first.

    Empty if NCCL finds none and gives up. A host name in NCCL_COMM_ID, which only a resolver could read, counts as
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
    # The bootstrap then uses only the subnet and ignores NCCL_SOCKET_IFNAME.
    first = _near(interfaces, meeting)
    return (*first, *(i for i in taken if i.name != first[0].name)) if first else ()


def gloo(
    interfaces: Sequence[Interface], environment: Mapping[str, str], own_name_binds: str | Missing
) -> tuple[Interface, ...] | Missing:
    """Return the addresses on which Gloo listens, `Missing` with torch's error if it fails."""
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


def matching(interfaces: Iterable[Interface], value: str) -> list[Interface]:
    """Return the interfaces whose names this NCCL_SOCKET_IFNAME selects."""
    items, excluded = items_of(value), value.startswith("^")
    if not items:
        return [] if excluded else list(interfaces)
    if value.removeprefix("^").startswith("="):
        return [i for i in interfaces if (i.name in items) != excluded]
    return [i for i in interfaces if i.name.startswith(items) != excluded]


@lru_cache(256)
def items_of(value: str) -> tuple[str, ...]:
    """Return the names or prefixes in an NCCL_SOCKET_IFNAME, without ports."""
    listed = value.removeprefix("^").removeprefix("=")
    heads = (entry.partition(":")[0] for entry in listed.split(","))
    return tuple(head for head in heads if head)[:_MOST]


def packed(address: str) -> bytes | None:
    """Return the 4 or 16 bytes of an address, else None; ten times as fast as ip_address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address)
    except (OSError, ValueError):
        return None


def unpacked(address: bytes) -> str:
    """Return the canonical text of an address of 4 or 16 bytes."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def subnet(interface: Interface) -> str | None:
    """Return the subnet of an interface's address, None if unknown."""
    own, bits = packed(interface.address), interface.prefix_bits
    if own is None or bits is None or not 0 <= bits <= 8 * len(own):
        return None
    host = 8 * len(own) - bits
    first = (int.from_bytes(own, "big") >> host << host).to_bytes(len(own), "big")
    return f"{unpacked(first)}/{bits}"


def _taken(interfaces: Sequence[Interface], settings: Mapping[str, str]) -> tuple[Interface, ...]:
    family = FAMILIES.get(settings.get(FAMILY, ""))
    value = settings.get(IFNAME, "")
    if decides(value):
        return _usable(matching(interfaces, value), family)
    if found := _usable(matching(interfaces, "ib"), family):
        return found
    meeting = _numeric(settings.get(COMM_ID, ""))
    if meeting is not None and (found := _near(interfaces, meeting)):
        return found
    tries = (_usable(matching(interfaces, names), family) for names in ("^docker,lo,virbr", "docker", "lo", "virbr"))
    return next((found for found in tries if found), ())


def _usable(interfaces: Iterable[Interface], family: int | None) -> tuple[Interface, ...]:
    """Return the first running address of each name that NCCL can use in this family."""
    first: dict[str, Interface] = {}
    for interface in interfaces:
        if interface.up and interface.name not in first and _fits(interface.address, family):
            first[interface.name] = interface
    return tuple(first.values())[:_MOST]


def _fits(address: str, family: int | None) -> bool:
    own = packed(address)
    return own is not None and family in {None, 4 if len(own) == 4 else 6} and own != _LOOPBACK_6


def _near(interfaces: Iterable[Interface], meeting: tuple[IPv4Address | IPv6Address, str]) -> tuple[Interface, ...]:
    """Return the first interface, running or not, whose subnet contains an address and zone."""
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
    """Return address and zone of ``<IPv4>:<port>`` or ``[<IPv6>%<zone>]:<port>``, else None."""
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
    # A socket can bind all of 127.0.0.0/8, although only 127.0.0.1 is listed.
    return Interface("lo" if ip is not None and ip.is_loopback else "", address, up=True, mtu_bytes=_LOOPBACK_MTU)


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, None for other text, which a foreign file of facts may hold."""
    try:
        return ip_address(text)
    except ValueError:
        return None
