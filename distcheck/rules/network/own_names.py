"""What a node's own host name makes Gloo do: the address at which it listens, and who connects there."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules.job.addresses import is_here
from distcheck.rules.network.interface_cases import FaultyChoice
from distcheck.rules.wording import brief, listed
from distcheck.selection.interfaces import packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.rules.network.interface_choices import Choice
    from distcheck.rules.network.selected_interfaces import Survey


def is_sought(case: FaultyChoice, highest: Sequence[tuple[bool, bytes, str]]) -> bool:
    """Whether another node would connect to the loopback address that Gloo uses.

    Of two nodes the one with the lower address listens. Source: pytorch/gloo, gloo/transport/tcp/device.cc
    (isInitiator).
    """
    other = next((o for o in highest if o[2] != case.choice.node.key), None)
    return other is not None and (other[0] or other[1] >= _packed(case.interfaces[0].address))


def highest_addresses(seen: Survey, length: int) -> list[tuple[bool, bytes, str]]:
    """Return the two nodes with the highest addresses, for loopbacks of `length` bytes.

    Each is (is above every such loopback, address bytes, node key). Loopback addresses themselves and addresses of the
    other family count as above.
    """
    highest: dict[str, tuple[bool, bytes]] = {}
    for choice in seen.choices:
        for interface in choice.taken("gloo")[:1]:
            own = _packed(interface.address)
            new = is_here(interface.address) or len(own) != length, own
            highest[choice.node.key] = max(highest.get(choice.node.key, new), new)
    return nlargest(2, ((*highest[key], key) for key in highest))


def _packed(address: str) -> bytes:
    return packed(address) or b""


def own_name(choice: Choice) -> str:
    """Return what is wrong with a node's own host name, as the start of a message template."""
    name = choice.network.own_name
    if isinstance(name, Missing):
        cause = f"the node's host name does not resolve ({brief(name.reason, 60)})"
    elif all(is_here(a) for a in name.addresses):
        cause = f"the node's host name resolves to {listed(name.addresses)}"
    else:
        cause = f"the node's host name resolves to {listed(name.addresses)}; the first bindable one is a loopback"
        if isinstance(choice.network.own_name_binds, Missing):
            cause = f"the node's host name resolves to {listed(name.addresses)}, which the node does not have"
    return cause.replace("{", "{{").replace("}", "}}")
