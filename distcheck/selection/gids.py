"""Which entry of a RoCE port's GID table NCCL uses, by NCCL's own rules.

NCCL (src/transport/net_ib/connect.cc, ncclIbGetGidIndex): NCCL_IB_GID_INDEX of 0 or more decides alone. Otherwise NCCL
2.21 and later start at index 0 and move to a later entry of the wanted address family (NCCL_IB_ADDR_FAMILY, IPv4) and
subnet (NCCL_IB_ADDR_RANGE) if the entry before has another family, or if it is valid and has the wanted RoCE version
(NCCL_IB_ROCE_VERSION_NUM, 2) and the one before has another version or is not valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from distcheck.facts.infiniband import Gid, HcaPort

INDEX = "NCCL_IB_GID_INDEX"
FAMILY = "NCCL_IB_ADDR_FAMILY"
_VERSION = "NCCL_IB_ROCE_VERSION_NUM"
_RANGE = "NCCL_IB_ADDR_RANGE"
SETTINGS = (INDEX, FAMILY, _VERSION, _RANGE)
"""What the choice of an entry depends on."""
V2 = "RoCE v2"
_NUMBER = re.compile(r"\s*([+-]?\d+)")


def number(settings: Mapping[str, str], name: str, default: int) -> int:
    """Return a setting as NCCL reads it, the default if it is unset."""
    match = _NUMBER.match(settings.get(name, ""))
    return int(match[1]) if match else default if not settings.get(name) else 0


def address(gid: Gid) -> IPv4Address | IPv6Address | None:
    """Return a GID's address: an IPv4 address if it is mapped, None for other text."""
    return _parsed(gid.address)


@lru_cache(1 << 16)
def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        whole = IPv6Address(text)
    except ValueError:
        return None
    return whole.ipv4_mapped or whole


def usable(gid: Gid | None) -> bool:
    """Return whether a GID can be routed: it has an address, and not a link-local one."""
    own = address(gid) if gid is not None else None
    return own is not None and not own.is_link_local and not own.is_unspecified


def chosen(port: HcaPort, settings: Mapping[str, str]) -> int:
    """Return the index of the GID that NCCL uses on a RoCE port."""
    index = number(settings, INDEX, -1)
    if index >= 0:
        return index
    family = 6 if settings.get(FAMILY) == "AF_INET6" else 4
    version = "RoCE v1" if number(settings, _VERSION, 2) == 1 else V2
    index = 0
    for candidate in sorted(port.gids):
        if candidate and _better(port.gids.get(index), port.gids[candidate], family, version, settings):
            index = candidate
    return index


def _better(now: Gid | None, other: Gid, family: int, version: str, settings: Mapping[str, str]) -> bool:
    if _family(other) != family or not _in_range(other, family, settings.get(_RANGE, "")):
        return False
    if _family(now) != family:
        return True
    if not usable(other):
        return False
    kind = now.kind if now is not None else ""
    return (kind != other.kind or not usable(now)) and other.kind.removeprefix("IB/") == version


def _family(gid: Gid | None) -> int:
    own = address(gid) if gid is not None else None
    return own.version if own is not None else 6


def _in_range(gid: Gid, family: int, text: str) -> bool:
    """Return whether a GID is in NCCL_IB_ADDR_RANGE, which must be of the family to count."""
    start, slash, bits = text.partition("/")
    try:
        if not slash or ip_address(start).version != family:
            return True
        net = ip_network(f"{start}/{int(bits)}", strict=False)
    except ValueError:
        return True
    own = address(gid)
    return own is not None and own in net
