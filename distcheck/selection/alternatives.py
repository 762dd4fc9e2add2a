"""The settings with which a failed case is repeated: each takes one transport, or one interface, away or picks another.

NCCL's variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. Gloo's:
https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.selection.interfaces import GLOO_IFNAME, gloo, packed, subnet

if TYPE_CHECKING:
    from distcheck.facts.network import Interface
    from distcheck.facts.node import NodeFacts

_MOST_INTERFACES = 4


class Avoidance(NamedTuple):
    """A variable of NCCL with the value that avoids a transport."""

    variable: str
    value: str
    inside: bool = True
    """Whether it matters between ranks of one node."""
    between: bool = True
    """Whether it matters between nodes."""


NCCL_SETTINGS = (
    Avoidance("NCCL_CUMEM_ENABLE", "0", between=False),
    Avoidance("NCCL_NVLS_ENABLE", "0", between=False),
    Avoidance("NCCL_P2P_DISABLE", "1", between=False),
    Avoidance("NCCL_SHM_DISABLE", "1", between=False),
    Avoidance("NCCL_ALGO", "Ring"),
    Avoidance("NCCL_IB_DISABLE", "1", inside=False),
    Avoidance("NCCL_NET", "Socket", inside=False),
)
"""The ones that cost a job the least speed come first."""
DIAGNOSTICS = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"}
"""With these, NCCL tests its own ranks."""
DIAGNOSTICS_SINCE = (2, 31)
VARIABLES = frozenset({GLOO_IFNAME, *(setting.variable for setting in NCCL_SETTINGS), *DIAGNOSTICS})
"""The only variables that a repeat may set."""


def alternatives(
    backend: str, nodes: Sequence[NodeFacts], environments: Sequence[Mapping[str, str]]
) -> tuple[dict[str, str], ...]:
    """Return the settings to repeat a failed case with, one variable each.

    Args:
        backend: nccl, gloo or mpi; for mpi there are none.
        nodes: the nodes of the case.
        environments: the variables of each of its ranks. A setting that all of them have already is left out.
    """
    if backend == "gloo":
        settings = [(GLOO_IFNAME, name) for name in _other_interfaces(nodes, environments)]
    elif backend == "nccl":
        shared, several = len(environments) > len(nodes), len(nodes) > 1
        settings = [(s.variable, s.value) for s in NCCL_SETTINGS if (s.inside and shared) or (s.between and several)]
    else:
        settings = []
    return tuple({name: value} for name, value in settings if any(e.get(name) != value for e in environments))


def _other_interfaces(nodes: Sequence[NodeFacts], environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return names of interfaces that lead from each node to the others and that Gloo does not use now.

    An interface with the same address on two nodes, such as a container bridge, leads nowhere. Inside one node there is
    nothing to choose: the kernel carries everything between its own addresses itself.
    """
    if len(nodes) == 1:
        return []
    everywhere: Counter[str] = Counter()
    addresses: dict[str, list[Interface]] = {}
    for node in nodes:
        first: dict[str, Interface] = {}
        for interface in () if isinstance(node.interfaces, Missing) else node.interfaces:
            if interface.up and (address := packed(interface.address)) is not None and len(address) == 4:
                first.setdefault(interface.name, interface)
        everywhere.update(list(first))
        for name, interface in first.items():
            addresses.setdefault(name, []).append(interface)
    different = {environment.get(GLOO_IFNAME, ""): environment for environment in environments}.values()
    used = {name for node in nodes for environment in different for name in _used(node, environment)}
    found = [
        name
        for name, count in everywhere.items()
        if count == len(nodes) and name not in used and _connects(addresses[name])
    ]
    return found[:_MOST_INTERFACES]


def _connects(interfaces: Sequence[Interface]) -> bool:
    """Whether interfaces of several nodes are in one subnet, each with an address of its own."""
    subnets = {subnet(i) for i in interfaces}
    return len(subnets) == 1 and None not in subnets and len({i.address for i in interfaces}) == len(interfaces)


def _used(node: NodeFacts, environment: Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(node.interfaces, Missing):
        return ()
    binds = node.network.own_name_binds if node.network is not None else Missing(reason="not asked")
    if not environment.get(GLOO_IFNAME) and isinstance(binds, Missing):
        return ()
    chosen = gloo(node.interfaces, environment, binds)
    return () if isinstance(chosen, Missing) else tuple(i.name for i in chosen)
