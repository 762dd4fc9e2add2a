"""Which InfiniBand and RoCE adapters NCCL may use, by NCCL's own rules.

NCCL (src/transport/net_ib, src/misc/socket.cc, src/misc/utils.cc) uses only ports that are active and whose link is
InfiniBand or Ethernet. NCCL_IB_HCA is a comma-separated list of name prefixes, each with an optional port after a
colon. A leading ``^`` excludes; a ``=`` after that requires whole names. An empty list means every adapter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from distcheck.facts.pci import Nic

HCA = "NCCL_IB_HCA"
_MOST = 32
"""Items of the list that NCCL reads (MAX_IB_DEVS)."""
_LINKS = ("InfiniBand", "Ethernet")
_NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_PORT = re.compile(r"\s*[+-]?[0-9]+")


class _Item(NamedTuple):
    name: str
    port: int | None
    """None: every port."""


def served(nic: Nic) -> bool:
    """Return whether NCCL's InfiniBand transport can use an adapter once a port is active."""
    return nic.kind == "ib" and nic.usable and nic.link_layer in _LINKS


def chosen(nic: Nic, value: str | None) -> bool:
    """Return whether this NCCL_IB_HCA allows an adapter: an active port, or any if none is."""
    return any(allows(value, nic.name, port) for port in nic.ports or (None,))


@lru_cache(1 << 12)
def allows(value: str | None, name: str, port: int | None) -> bool:
    """Return whether this NCCL_IB_HCA allows a port of an adapter; port None stands for any."""
    if not value:
        return True
    listed = value.removeprefix("^")
    whole = listed.startswith("=")
    items = _items(listed.removeprefix("="))
    hit = not items or any(
        (name == item.name if whole else name.startswith(item.name))
        and (item.port is None or port is None or item.port == port)
        for item in items
    )
    return hit != value.startswith("^")


def items_of(value: str) -> tuple[str, ...]:
    """Return the names or prefixes in an NCCL_IB_HCA, without ports."""
    return tuple(item.name for item in _items(value.removeprefix("^").removeprefix("=")))


def off(environment: Mapping[str, str]) -> bool:
    """Return whether NCCL_IB_DISABLE or NCCL_NET turns NCCL's InfiniBand transport off."""
    match = _NUMBER.match(environment.get("NCCL_IB_DISABLE", ""))
    disabled = match is not None and int(match[1], 16 if match[1][:2].lower() == "0x" else 10) != 0
    return disabled or environment.get("NCCL_NET", "IB").upper() != "IB"


def overridden(environment: Mapping[str, str]) -> bool:
    """Return whether a net plugin or a topology file decides which adapter a GPU uses."""
    return environment.get("NCCL_NET_PLUGIN", "none") not in {"", "none"} or bool(environment.get("NCCL_TOPO_FILE"))


@lru_cache(256)
def _items(listed: str) -> tuple[_Item, ...]:
    found = []
    for entry in listed.split(","):
        name, _, rest = entry.partition(":")
        port = rest.partition(":")[0]
        if name:  # nothing after the colon: until NCCL 2.28 port 0, which does not exist; every port since
            found.append(_Item(name, _atoi(port) if port else None))
    return tuple(found[:_MOST])


def _atoi(text: str) -> int:
    match = _PORT.match(text)
    return int(match[0]) if match else 0
