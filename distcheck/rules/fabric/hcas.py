"""Rules about which adapters NCCL takes: NCCL_IB_HCA, link layers, and whether the nodes agree."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.lines import (
    FabricPort,
    View,
    alone,
    by_name,
    not_read,
    ports,
    ranks_of,
    shown,
    uses_nccl,
    views,
    where,
)
from distcheck.rules.finding import Fix, Severity
from distcheck.rules.job.nccl_remedies import removal
from distcheck.rules.nccl.settings import alike
from distcheck.rules.wording import brief, found, grouped, listed, named, nodes_of, once
from distcheck.selection.adapters import HCA, allows, items_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Fault


@rule("peers", scope="rank")
def ib_hca_no_match(job: Job) -> Iterator[Outcome]:
    """NCCL_IB_HCA selects none of a node's active adapters, or an item of it names none.

    NCCL logs ``NET/IB : No device found.`` and uses TCP sockets, at a fraction of the bandwidth; or, if other nodes
    still use InfiniBand, the start fails.

    Found by reading NCCL_IB_HCA as NCCL does: ``^`` first excludes, then ``=`` requires whole names, commas separate
    prefixes, and a colon precedes a port. A blank or a second ``=`` belongs to the name, which then matches nothing. It
    is an error if no active port is left, a warning if an item names no adapter of any node, and it is silent for a
    list that names the adapters of several kinds of nodes.

    Fix: name the adapters as ``ls /sys/class/infiniband`` lists them on every node, or unset NCCL_IB_HCA.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    yield from not_read(job)
    names = {hca.name for view in views(job) for hca in view.adapters.hcas}
    lost = {view.node.key for view in _lacking(job) if not _allowed(view)}  # ib-hcas-differ reports them
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
            _correct(job, ranks[0], active),
            severity="warning" if value.startswith("^") else "error",
            evidence={HCA: value} | shown(active),
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
                _correct(job, ranks[0], [line for view in where_set for line in view.taken]),
                severity="warning",
                evidence={HCA: value, "adapters": sorted(names)},
            )


def _hit(value: str, item: str, name: str) -> bool:
    return name == item if value.removeprefix("^").startswith("=") else name.startswith(item)


def _correct(job: Job, rank: RankFacts, lines: list[FabricPort]) -> Fix:
    names = sorted({line.hca.name for line in lines if line.port.link_layer == lines[0].port.link_layer})
    return Fix(
        f"Unset {HCA}, or name the adapters as they are on the nodes, without blanks.",
        (removal(job, rank, HCA), f"export {HCA}={shlex.quote('=' + ','.join(names))}", "ls /sys/class/infiniband"),
    )


@rule("peers", severity="warning", scope="rank")
def ib_hca_prefix_trap(job: Job) -> Iterator[Outcome]:
    """An item of NCCL_IB_HCA is an adapter's name, and also the prefix of other adapters.

    ``mlx5_1`` also selects mlx5_10 to mlx5_19, or with ``^`` excludes them. NCCL then uses adapters for storage or
    logins, or leaves out those of the GPUs.

    Found where an item is the whole name of an adapter and matches other active adapters that no item names.

    Fix: ``export NCCL_IB_HCA==mlx5_1``: a leading ``=`` requires whole names.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    for value, pairs in grouped([(v, view) for view in views(job) for v in view.lists], lambda item: item[0]).items():
        if value.removeprefix("^").startswith("="):
            continue
        items = items_of(value)
        if not items:
            continue
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
                Fix(
                    "Require whole names with a leading =.",
                    (f"export {HCA}={shlex.quote(f'{sign}={value.removeprefix(sign)}')}",),
                ),
                evidence={HCA: value, **surplus},
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

    Fix: ``export NCCL_IB_HCA=^mlx5_bond_0``, or name the adapters of one link layer.

    See: https://github.com/NVIDIA/nccl/issues/1412
    """
    lines = {view.node.key: view.taken for view in views(job)}
    layers = {key: frozenset(line.port.link_layer for line in ports) for key, ports in lines.items() if ports}
    everything = [line for ports in lines.values() for line in ports]
    if len(frozenset().union(*layers.values())) < 2 or alone(job):
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
        Fix(
            "Have NCCL use the adapters of one link layer.",
            (
                f"export {HCA}={shlex.quote('^=' + ','.join(ethernet))}",
                "grep . /sys/class/infiniband/*/ports/*/link_layer",
            ),
        ),
        severity=severity,
        evidence={layer: where(group, 16) for layer, group in kinds.items()},
    )


@rule("peers", "nccl-mixed-nic-count", scope="node", owner="admin")
def ib_hcas_differ(job: Job) -> Iterator[Outcome]:
    """A node has fewer RDMA adapters for NCCL than the other nodes, or none.

    A node without adapters uses TCP sockets while the others use InfiniBand: the start fails or hangs. With fewer
    adapters the node has less bandwidth, and the whole job waits for it. A hang without an error was reported too. NCCL
    2.30 logs ``Detected mixed local Net device counts across ranks`` and fails with NCCL_IGNORE_NET_MISMATCH=0. An
    adapter that fell off the bus, a driver that is not loaded, and a container without them look the same.

    Found by the number of ports, in any state, that NCCL_IB_HCA allows a rank of each node. It is an error for nodes
    without any, and with NCCL_IGNORE_NET_MISMATCH=0. A node that has active ports, of which NCCL_IB_HCA allows none, is
    reported here only if it lacks ports that the other nodes have; else ib-hca-no-match reports the list.

    Fix: ``ls /sys/class/infiniband``, ``lspci | grep -i mellanox``, ``sudo dmesg | grep mlx5`` on that node.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    See: https://github.com/NVIDIA/nccl/issues/2428
    """
    lacking = _lacking(job)
    most = max((len(_allowed(view)) for view in views(job) if not view.adapters.unread), default=0) if lacking else 0
    for count, group in grouped(lacking, lambda view: len(_allowed(view))).items():
        yield _fewer(job, group, count, most)


@once
def _lacking(job: Job) -> tuple[View, ...]:
    """Return the nodes with fewer ports for NCCL than the others, unless only their NCCL_IB_HCA is at fault."""
    if alone(job) or not uses_nccl(job):
        return ()
    seen = [view for view in views(job) if not view.adapters.unread]
    allowed = {view.node.key: _allowed(view) for view in seen}
    most = max(map(len, allowed.values()), default=0)
    few = [view for view in seen if len(allowed[view.node.key]) < most]
    if not few or 2 * len(few) > len(seen):
        return ()  # all alike, or nodes of several kinds
    whole = {line.name for view in seen if len(allowed[view.node.key]) == most for line in _all(view) if line.own}

    def lacks(view: View) -> bool:
        own = [line for line in _all(view) if line.own]
        return bool(allowed[view.node.key]) or not any(i.active for i in own) or {i.name for i in own} < whole

    return tuple(view for view in few if lacks(view))


def _allowed(view: View) -> tuple[str, ...]:
    """Return the ports that NCCL_IB_HCA allows a rank of a node, of the rank with the most."""
    own = [line for line in view.lines if line.own]
    if len(view.lists) == 1:
        return tuple([line.name for line in own])
    return max((tuple(i.name for i in own if allows(v, i.hca.name, i.port.number)) for v in view.lists), key=len)


def _fewer(job: Job, group: list[View], count: int, most: int) -> Fault:
    strict = any(
        ranks.value("NCCL_IGNORE_NET_MISMATCH") and not ranks.number("NCCL_IGNORE_NET_MISMATCH") for ranks in alike(job)
    )
    ranks = [rank for view in group for rank in view.ranks]
    of_some = "" if count or not any(line.own for line in _all(group[0])) else f" that {HCA} allows"
    return found(
        job,
        ranks,
        f"{listed(nodes_of(job, ranks))}: {count or 'no'} InfiniBand or RoCE ports{of_some}; other nodes have {most}",
        Fix(
            "Look for an adapter that is missing on the bus, or a driver that is not loaded; in a container, for the "
            "network namespace's own devices.",
            ("ls /sys/class/infiniband", "lspci | grep -i -e mellanox -e infiniband", "rdma system show"),
        ),
        severity="warning" if count and not strict else "error",
        evidence={
            listed([view.node.name for view in alike_nodes]): list(ports[:16])
            for ports, alike_nodes in list(grouped(views(job), _allowed).items())[:16]
        },
    )
