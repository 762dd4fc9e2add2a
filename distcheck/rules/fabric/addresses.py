"""Rules about the addresses of RDMA ports: GIDs of RoCE, subnets, partition keys."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.gid_choices import (
    GidChoice,
    elsewhere,
    gid_choices,
    has_ipv4,
    misfits,
    ports_of,
    readable,
    subnet_of,
    tables,
    with_infiniband,
)
from distcheck.rules.fabric.lines import PKEY, FabricPort, not_read, ranks_of, views, where
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.nccl_remedies import removals
from distcheck.rules.wording import found, grouped, listed, named
from distcheck.selection.gids import INDEX, V2, number, usable
from distcheck.selection.nccl_settings import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FULL_MEMBER = 0x8000
_KEY = 0x7FFF


@rule("peers", scope="rank")
def roce_gid_index_wrong(job: Job) -> Iterator[Outcome]:
    """NCCL_IB_GID_INDEX selects an empty GID, or GIDs of different kinds on different nodes.

    Connecting fails: ``Call to ibv_modify_qp failed with error Invalid argument`` for an empty entry, and
    ``Connection timed out``, ``Network is unreachable`` or ``No such device`` where the two ends have different kinds.
    The index of an address depends on the order in which a node got its addresses, so it differs between nodes.

    Found by the GID table in sysfs at that index, for each port that NCCL uses, across the nodes. An entry of another
    kind than RoCE v2, or a link-local one, on all nodes is a warning: it works only within one Ethernet segment. Where
    a rank has another port that works, an empty entry is a warning, and an info if the port is alike on all nodes.

    Fix: Unset NCCL_IB_GID_INDEX: NCCL 2.21 and later choose the RoCE v2 entry themselves. With an older NCCL, set the
    index of the RoCE v2 entry with the node's IPv4 address.

        {removal|unset NCCL_IB_GID_INDEX}
        show_gids || grep -r . /sys/class/infiniband/*/ports/*/gid_attrs/types

    See: https://github.com/NVIDIA/nccl/issues/769
    """
    yield from not_read(job)
    choices = [c for c in gid_choices(job) if c.by_hand and not elsewhere(c)]
    for (what, severity), group in grouped(misfits(job, choices), lambda misfit: misfit[1:]).items():
        ranks = _unique(choice.ranks for choice, *_ in group)
        lines = ports_of([choice for choice, *_ in group])
        values = sorted({value_of(job, rank, INDEX) for rank in ranks})
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {INDEX}={','.join(values)} {what.format(where(lines))}",
            severity=severity,
            evidence={INDEX: values} | tables(lines),
            values={"removal": removals(job, ranks[:1], INDEX)},
        )


def _unique(groups: Iterable[Sequence[RankFacts]]) -> list[RankFacts]:
    return list({id(rank): rank for ranks in groups for rank in ranks}.values())


@rule("peers", scope="node")
def roce_port_in_other_namespace(job: Job) -> Iterator[Outcome]:
    """The network interface behind a RoCE port is in another network namespace, so NCCL cannot use the port.

    A container with a network of its own sees the host's adapters, but not their interfaces: ``Call to ibv_modify_qp
    failed with error No such device``, ``NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument``, or the
    connection times out.

    Found by the GID that NCCL uses: its interface is not among those of the probing process, or sysfs shows neither
    interface nor type of any GID of the port. It is an error if NCCL has no other port on the node, else a warning.

    Fix: Give the container the network of the host (``hostNetwork: true``), or the pod an interface of the adapter
    (macvlan, SR-IOV).

        # add to docker run: --network=host
        export NCCL_IB_HCA={others|^HCA}  # to start without these adapters
        show_gids || grep -r . /sys/class/infiniband/*/ports/*/gid_attrs/types

    See: https://github.com/NVIDIA/nccl/issues/925
    """
    lines = ports_of([choice for choice in gid_choices(job) if elsewhere(choice)])
    far = {(line.node.key, line.name) for line in lines}
    near = {view.node.key for view in views(job) if any((i.node.key, i.name) not in far for i in view.taken)}
    for works, group in grouped(lines, lambda line: line.node.key in near).items():
        others = "^" + ",".join(dict.fromkeys(line.hca.name for line in group))
        yield found(
            job,
            ranks_of(job, group),
            f"{where(group)}: the network interface is in another network namespace, as outside of a container",
            severity="warning" if works else "error",
            evidence=tables(group),
            values={"others": [quote(others)]},
        )


@rule("peers", scope=("node", "job"))
def roce_no_ipv4_gid(job: Job) -> Iterator[Outcome]:
    """A RoCE port that NCCL uses has no IPv4 address, although the same port of other nodes has one.

    NCCL then takes the entry at index 0, which is link-local: ``Call to ibv_modify_qp failed with error Connection
    timed out``.

    Found by the GID table: no entry of the type RoCE v2 with an IPv4 address. It is an error if the node has no other
    port with one. Where no node has IPv4 addresses on its RoCE ports but IPv6 ones, it is a warning to set
    NCCL_IB_ADDR_FAMILY.

    Fix: Assign an IPv4 address to the port's network interface.

        {look|rdma link show}
        show_gids || grep -r . /sys/class/infiniband/*/ports/*/gid_attrs/types

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-addr-family
    """
    lines = ports_of([c for c in gid_choices(job) if not c.by_hand and c.ipv4 and readable(c.line)])
    good = {(line.node.key, line.name) for line in lines if has_ipv4(line)}
    names, nodes = {name for _, name in good}, {key for key, _ in good}
    bare = [line for line in lines if (line.node.key, line.name) not in good and line.name in names]
    infiniband = with_infiniband(job)
    working = nodes | infiniband
    for works, group in grouped(bare, lambda line: line.node.key in working).items():
        interface = next((gid.interface for line in group for gid in line.port.gids.values() if gid.interface), "")
        yield found(
            job,
            ranks_of(job, group),
            f"{where(group)} {'has' if len(group) == 1 else 'have'} no IPv4 GID of type RoCE v2; "
            f"the port of that name has one on other nodes",
            severity="warning" if works else "error",
            owner="admin",
            evidence=tables(group),
            values={"look": [f"ip address show dev {quote(interface)}"] if interface else []},
        )
    only_ipv6 = [line for line in lines if any(usable(gid) and gid.kind == V2 for gid in line.port.gids.values())]
    if lines and not good and only_ipv6 and not infiniband:
        yield found(
            job,
            ranks_of(job, only_ipv6),
            f"the RoCE ports of all nodes have IPv6 addresses only ({where(only_ipv6, 2)}), and NCCL looks for IPv4",
            Fix("Have NCCL use IPv6 addresses on RoCE.", ("export NCCL_IB_ADDR_FAMILY=AF_INET6",)),
            severity="warning",
            scope="job",
        )


@rule("peers", severity="warning")
def roce_gid_subnet(job: Job) -> Iterator[Outcome]:
    """A RoCE port has several addresses, and NCCL takes one of another subnet than on the other nodes.

    The connection works between some nodes and times out between others.

    Found by the GID that NCCL 2.21 and later choose, and the subnets of the node's interfaces: it is in a subnet in
    which no other node's port of that name is, although the port has an address in theirs. Ports with one address
    each, as in routed networks, are not compared.

    Fix: Name the subnet of the RoCE network.

        export NCCL_IB_ADDR_RANGE={subnet}
        show_gids || grep -r . /sys/class/infiniband/*/ports/*/gid_attrs/types

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-addr-range
    """
    picks: dict[str, dict[str, tuple[GidChoice, str]]] = {}
    for choice in gid_choices(job):
        net = "" if choice.by_hand else subnet_of(choice.line, choice.gid)
        if net:
            picks.setdefault(choice.line.name, {})[choice.line.node.key] = (choice, net)
    odd: list[tuple[GidChoice, str, str]] = []
    for of_nodes in picks.values():
        nets = grouped(of_nodes.values(), lambda pick: pick[1])
        usual = max(nets, key=lambda net: len(nets[net]))
        for choice, net in of_nodes.values():
            if net != usual and len(nets[net]) == 1:
                others = {subnet_of(choice.line, gid) for gid in choice.line.port.gids.values()}
                odd += [(choice, net, usual)] if usual in others else []
    for (net, usual), group in grouped(odd, lambda item: item[1:]).items():
        lines = [choice.line for choice, *_ in group]
        yield found(
            job,
            ranks_of(job, lines),
            f"NCCL takes the address in {net} on {where(lines)}; on the other nodes it takes one in {usual}",
            evidence=tables(lines),
            values={"subnet": [usual]},
        )


@rule("peers", severity="warning", owner="admin")
def ib_subnet_differs(job: Job) -> Iterator[Outcome]:
    """InfiniBand ports of the nodes are in different subnets.

    Ports in different InfiniBand subnets reach each other only through an InfiniBand router: ``Call to ibv_modify_qp
    failed with error Connection timed out``.

    Found by the subnet prefix of the ports' GIDs: two nodes have none in common.

    Fix: Use nodes of one fabric, or configure one subnet prefix in all subnet managers.

        grep . /sys/class/infiniband/*/ports/*/gids/0

    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/opensm
    """
    prefixes: dict[str, frozenset[str]] = {}
    for view in views(job):
        taken = [i.port for i in view.taken]
        own = frozenset(p.gids[0].address[:19] for p in taken if p.link_layer == "InfiniBand" and 0 in p.gids)
        if own:
            prefixes[view.node.key] = own
    groups = grouped(prefixes, prefixes.__getitem__)
    if len(groups) < 2 or frozenset.intersection(*groups):
        return
    most = max(map(len, groups.values()))
    odd = {key for keys in groups.values() if len(keys) < most for key in keys} or set(prefixes)
    views_of = [view for view in views(job) if view.node.key in odd]
    ranks = [rank for view in views_of for rank in view.ranks]
    yield found(
        job,
        ranks,
        f"the InfiniBand ports of {listed([v.node.name for v in views_of])} are in another subnet than the others'",
        evidence={view.node.name: sorted(prefixes.get(view.node.key, ())) for view in views(job)[:16]},
    )


@rule("peers", owner="admin")
def ib_pkey(job: Job) -> Iterator[Outcome]:
    """The nodes' InfiniBand ports share no partition at the index that NCCL uses.

    A port talks only to ports with the same partition key, of which at least one is a full member. NCCL uses the key
    at the index NCCL_IB_PKEY, 0 by default: ``Call to ibv_modify_qp failed with error Invalid argument`` if there is
    none, and a completion with ``status=12`` or a time-out if the keys differ.

    Found by the table of partition keys in sysfs.

    Fix: Set NCCL_IB_PKEY to the index of the job's partition; have the administrator add the nodes to it.

        grep -v 0x0000 /sys/class/infiniband/*/ports/*/pkeys/*

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    keys: dict[tuple[int, int | None], list[tuple[Sequence[RankFacts], FabricPort]]] = {}
    for view in views(job):
        lines = [i for i in view.taken if i.port.link_layer == "InfiniBand" and i.port.pkey_slots]
        for values, ranks in view.alike:
            index = number(values, PKEY, 0)
            for line in lines:
                keys.setdefault((index, line.port.partition_keys.get(index)), []).append((ranks, line))
    empty = [(index, pairs) for (index, key), pairs in keys.items() if key is None]
    for index, pairs in empty:
        yield _keys(job, pairs, f"there is no partition key at index {index} of {{}}")
    partitions = grouped([k for k in keys if k[1] is not None], lambda item: (item[1] or 0) & _KEY)
    if not empty and len(partitions) > 1:
        size = {key: sum(len(ranks) for item in items for ranks, _ in keys[item]) for key, items in partitions.items()}
        usual = max(size, key=lambda key: size[key])
        pairs = [pair for key, items in partitions.items() if key != usual for item in items for pair in keys[item]]
        yield _keys(job, pairs, f"{{}}: not in the partition of the other ports (key {usual:#06x})")
    elif keys and not empty and not any((key or 0) & _FULL_MEMBER for _, key in keys):
        yield _keys(job, [p for pairs in keys.values() for p in pairs], "{} are all limited members of their partition")


def _keys(job: Job, pairs: list[tuple[Sequence[RankFacts], FabricPort]], what: str) -> Fault:
    ranks = _unique(ranks for ranks, _ in pairs)
    lines = list({(line.node.key, line.name): line for _, line in pairs}.values())
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: {what.format(where(lines))}",
        evidence={
            f"{line.node.name} {line.name}": [f"{n}: {key:#06x}" for n, key in line.port.partition_keys.items()][:8]
            for line in lines[:16]
        },
    )
