"""Rules about which adapters NCCL takes: NCCL_IB_HCA, link layers, and whether the nodes agree."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.fabric.lines import (
    FabricPort,
    View,
    by_name,
    each_view,
    not_read,
    ports,
    ranks_of,
    shown,
    views,
    where,
)
from distcheck.rules.finding import Fault, Severity
from distcheck.rules.job.nccl_remedies import removal
from distcheck.rules.nccl.settings import alike
from distcheck.rules.wording import brief, found, grouped, listed, named, once
from distcheck.selection.adapters import HCA, allows, items_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.rank import RankFacts

_IGNORE = "NCCL_IGNORE_NET_MISMATCH"


@rule("peers", scope="rank")
def ib_hca_no_match(job: Job) -> Iterator[Outcome]:
    """NCCL_IB_HCA selects none of a node's active adapters, or an item of it names none.

    NCCL logs ``NET/IB : No device found.`` and uses TCP sockets, at a fraction of the bandwidth; or, if other nodes
    still use InfiniBand, the start fails.

    Found by reading NCCL_IB_HCA as NCCL does: ``^`` first excludes, then ``=`` requires whole names, commas separate
    prefixes, and a colon precedes a port. A blank or a second ``=`` belongs to the name, which then matches nothing. It
    is an error if no active port is left, a warning if an item names no adapter of any node, and it is silent for a
    list that names the adapters of several kinds of nodes.

    Fix: Unset NCCL_IB_HCA, or name the adapters as they are on the nodes, without blanks.

        {removal|unset NCCL_IB_HCA}
        export NCCL_IB_HCA={adapters|=HCA}
        ls /sys/class/infiniband

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    yield from not_read(job)
    names = {hca.name for view in views(job) for hca in view.adapters.hcas}
    lost = {v.node.key for v in views(job) if v.node.key in _lacking(job) and not _allowed(v)}  # see ib-hcas-differ
    unknown: dict[str, list[View]] = {}
    useless: dict[str, list[View]] = {}
    for view in views(job):
        for value in view.lists if view.node.key not in lost else ():
            if not value:
                continue
            if view.active and (len(view.lists) == 1 or any(_selects(value, i) for i in view.lines)):
                unknown.setdefault(value, []).append(view)
            elif any(i.own and i.active for i in _all(view)):
                useless.setdefault(value, []).append(view)
    for value, where_set in useless.items():
        ranks = [rank for view in where_set for rank in view.lists[value]]
        active = [line for view in where_set for line in _all(view) if line.own and line.active]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {HCA}={brief(value, 60)} selects none of the active ports {where(active)}",
            severity="warning" if value.startswith("^") else "error",
            evidence={HCA: value} | shown(active),
            values=_correct(job, ranks[0], active),
        )
    for value, where_set in unknown.items():
        odd = [item for item in items_of(value) if not any(_hit(value, item, name) for name in names)]
        if odd:
            ranks = [rank for view in where_set for rank in view.lists[value]]
            blank = next((item for item in odd if item != item.strip() and item.strip() in names), "")
            why = "the blank belongs to the name" if blank else "no node has such an adapter"
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {listed([repr(i) for i in odd])} in {HCA}={brief(value, 60)}: {why}",
                severity="warning",
                evidence={HCA: value, "adapters": sorted(names)},
                values=_correct(job, ranks[0], [line for view in where_set for line in view.taken]),
            )


def _hit(value: str, item: str, name: str) -> bool:
    return name == item if value.removeprefix("^").startswith("=") else name.startswith(item)


def _correct(job: Job, rank: RankFacts, lines: list[FabricPort]) -> dict[str, list[str]]:
    names = sorted({line.hca.name for line in lines if line.port.link_layer == lines[0].port.link_layer})
    return {"removal": [removal(job, rank, HCA)], "adapters": [quote("=" + ",".join(names))]}


@rule("peers", severity="warning", scope="rank")
def ib_hca_prefix_trap(job: Job) -> Iterator[Outcome]:
    """An item of NCCL_IB_HCA is an adapter's name, and also the prefix of other adapters.

    ``mlx5_1`` also selects mlx5_10 to mlx5_19, or with ``^`` excludes them. NCCL then uses adapters for storage or
    logins, or leaves out those of the GPUs.

    Found where an item is the whole name of an adapter and matches other active adapters that no item names.

    Fix: Require whole names with a leading =.

        export NCCL_IB_HCA={exact|=HCA}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    for value, pairs in grouped([(v, view) for view in views(job) for v in view.lists], lambda item: item[0]).items():
        items = () if value.removeprefix("^").startswith("=") else items_of(value)
        lines = {line.hca.name for _, view in pairs for line in _all(view) if line.active and line.own}
        others = sorted(lines.difference(items))
        caught = {item: [name for name in others if name.startswith(item)] for item in items if item in lines}
        surplus = {item: names for item, names in caught.items() if names}
        if surplus:
            item, names = next(iter(surplus.items()))
            ranks = [rank for _, view in pairs for rank in view.lists[value]]
            sign = "^" if value.startswith("^") else ""
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {item} in {HCA}={brief(value, 60)} also {'excludes' if sign else 'selects'} "
                f"{listed(names)}",
                evidence={HCA: value, **surplus},
                values={"exact": [quote(f"{sign}={value.removeprefix(sign)}")]},
            )


def _selects(value: str, line: FabricPort) -> bool:
    """Return whether an NCCL_IB_HCA selects a port that NCCL can use."""
    return line.own and line.active and allows(value, line.hca.name, line.port.number)


def _all(view: View) -> list[FabricPort]:
    return list(ports(view.node, view.adapters))


@rule("peers")
def ib_mixed_link_layer(job: Job) -> Iterator[Outcome]:
    """NCCL would use InfiniBand adapters on some nodes and Ethernet (RoCE) adapters on others.

    An InfiniBand port cannot talk to an Ethernet port: ``NET/IB : Attempted to connect incompatible devices``, with
    ``Try selecting NICs of only one link type using NCCL_IB_HCA``.

    Found by the link layers of the active ports that NCCL_IB_HCA allows. It is an error if two nodes have none in
    common, or if a port of one name has both; a warning if only some nodes have both. Nodes that all have
    InfiniBand ports for the GPUs and Ethernet ports for storage are usual: an info finding.

    Fix: Have NCCL use the adapters of one link layer.

        export NCCL_IB_HCA={others|^=HCA}
        grep . /sys/class/infiniband/*/ports/*/link_layer

    See: https://github.com/NVIDIA/nccl/issues/1412
    """
    lines = {view.node.key: view.taken for view in views(job)}
    layers = {key: frozenset(line.port.link_layer for line in ports) for key, ports in lines.items() if ports}
    everything = [line for ports in lines.values() for line in ports]
    if len(frozenset().union(*layers.values())) < 2:
        return
    disjoint = not frozenset.intersection(*layers.values())
    torn = [n for n, ports in by_name(job).items() if len({i.port.link_layer for i in ports if i.active}) > 1]
    severity: Severity = "error" if disjoint or torn else "warning" if len(set(layers.values())) > 1 else "info"
    ethernet = sorted({line.hca.name for line in everything if line.port.link_layer == "Ethernet"})
    kinds = grouped(everything, lambda line: line.port.link_layer)
    per_layer = [f"{layer}: {where(group, 3)}" for layer, group in kinds.items()]
    yield found(
        job,
        ranks_of(job, everything),
        f"NCCL may use both link layers: {listed([brief(words, 100) for words in per_layer])}",
        severity=severity,
        evidence={layer: where(group, 16) for layer, group in kinds.items()},
        values={"others": [quote("^=" + ",".join(ethernet))]},
    )


@rule("peers", "nccl-mixed-nic-count", scope="node", owner="admin", of=each_view)
def ib_hcas_differ(job: Job, view: View) -> Answer:
    """A node has fewer RDMA adapters for NCCL than the other nodes, or none.

    A node without adapters uses TCP sockets while the others use InfiniBand: the start fails or hangs. With fewer
    adapters the node has less bandwidth, and the whole job waits for it. A hang without an error was reported too. NCCL
    2.30 logs ``Detected mixed local Net device counts across ranks`` and fails with NCCL_IGNORE_NET_MISMATCH=0. An
    adapter that fell off the bus, a driver that is not loaded, and a container without them look the same.

    Found by the number of ports, in any state, that NCCL_IB_HCA allows a rank of each node. It is an error for nodes
    without any, and with NCCL_IGNORE_NET_MISMATCH=0. A node that has active ports, of which NCCL_IB_HCA allows none, is
    reported here only if it lacks ports that the other nodes have; else ib-hca-no-match reports the list.

    Fix: Look for an adapter that is missing on the bus, or a driver that is not loaded; in a container, for the network
    namespace's own devices.

        ls /sys/class/infiniband
        lspci | grep -i -e mellanox -e infiniband
        rdma system show

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    See: https://github.com/NVIDIA/nccl/issues/2428
    """
    if view.node.key not in _lacking(job):
        return None
    count, most = len(_allowed(view)), max(map(len, _by_allowed(job)))
    of_some = "" if count or not any(line.own for line in _all(view)) else f" that {HCA} allows"
    strict = any(r.value(_IGNORE) and not r.number(_IGNORE) for r in alike(job))
    return Fault(
        f"{count or 'no'} InfiniBand or RoCE ports{of_some}; other nodes have {most}",
        severity="warning" if count and not strict else "error",
        evidence=_shown(job),
    )


@once
def _shown(job: Job) -> dict[str, list[str]]:
    several = list(_by_allowed(job).items())[:16]
    return {listed([view.node.name for view in views]): list(ports[:16]) for ports, views in several}


@once
def _by_allowed(job: Job) -> dict[tuple[str, ...], list[View]]:
    """Return the nodes whose adapters are all known, by the ports that NCCL_IB_HCA allows."""
    return grouped([view for view in views(job) if not view.adapters.unread], _allowed)


@once
def _lacking(job: Job) -> set[str]:
    """Return the nodes with fewer ports for NCCL than the others, unless only their NCCL_IB_HCA is at fault."""
    of_all = _by_allowed(job)
    most = max(map(len, of_all), default=0)
    few = [view for ports, several in of_all.items() if len(ports) < most for view in several]
    if 2 * len(few) > sum(map(len, of_all.values())):
        return set()  # nodes of several kinds
    full = [view for ports, several in of_all.items() if len(ports) == most for view in several] if few else []
    whole = {line.name for view in full for line in _all(view) if line.own}

    def lacks(view: View) -> bool:
        own = [line for line in _all(view) if line.own]
        return bool(_allowed(view)) or not any(i.active for i in own) or {i.name for i in own} < whole

    return {view.node.key for view in few if lacks(view)}


def _allowed(view: View) -> tuple[str, ...]:
    """Return the ports that NCCL_IB_HCA allows a rank of a node, of the rank with the most."""
    own = [line for line in view.lines if line.own]
    if len(view.lists) == 1:
        return tuple([line.name for line in own])
    return max((tuple(i.name for i in own if allows(v, i.hca.name, i.port.number)) for v in view.lists), key=len)
