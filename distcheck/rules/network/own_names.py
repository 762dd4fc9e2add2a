"""What a node's own host name makes Gloo do: the address at which it listens, and who connects there."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules.job.addresses import is_here
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import brief, listed, once
from distcheck.selection.interfaces import packed

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.rules.network.interface_cases import Case
    from distcheck.rules.network.interface_choices import Choice


def is_sought(job: Job, case: Case) -> bool:
    """Whether another node would connect to the loopback address that Gloo uses.

    Of two nodes the one with the lower address listens. Source: pytorch/gloo, gloo/transport/tcp/device.cc
    (isInitiator).
    """
    own = packed(case.interfaces[0].address) or b""
    other = next((o for o in _highest(job).get(len(own), ()) if o[2] != case.choice.node.key), None)
    return other is not None and (other[0] or other[1] >= own)


@once
def _highest(job: Job) -> dict[int, list[tuple[bool, bytes, str]]]:
    """Return the two nodes with the highest addresses, for loopbacks of 4 and of 16 bytes.

    Each is (is above every such loopback, address bytes, node key). Loopback addresses themselves and addresses of the
    other family count as above.
    """
    found = {}
    for length in (4, 16):
        highest: dict[str, tuple[bool, bytes]] = {}
        for choice in survey(job).choices:
            for interface in choice.taken("gloo")[:1]:
                own = packed(interface.address) or b""
                new = is_here(interface.address) or len(own) != length, own
                highest[choice.node.key] = max(highest.get(choice.node.key, new), new)
        found[length] = nlargest(2, ((*highest[key], key) for key in highest))
    return found


def own_name(choice: Choice) -> str:
    """Return what is wrong with a node's own host name."""
    name = choice.network.own_name
    if isinstance(name, Missing):
        return f"the node's host name does not resolve ({brief(name.reason, 60)})"
    cause = f"the node's host name resolves to {listed(name.addresses)}"
    if all(is_here(a) for a in name.addresses):
        return cause
    if isinstance(choice.network.own_name_binds, Missing):
        return f"{cause}, which the node does not have"
    return f"{cause}; the first bindable one is a loopback"
