"""Rules about packet sizes on the paths between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from shlex import quote

from distcheck.facts.infiniband import Infiniband
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.lines import views
from distcheck.rules.finding import Fault
from distcheck.rules.network.attempts import Ways, interface_name, nothing_arrived
from distcheck.rules.network.path_uses import path_uses
from distcheck.rules.network.selected_interfaces import own_way, survey
from distcheck.rules.network.trials import by_way, stalled, transferred
from distcheck.rules.wording import found, grouped, listed
from distcheck.selection.nccl_settings import value_of

Sizes = dict[str, dict[str, int]]
"""The active MTU by node and port (mlx5_0/1)."""
_USUAL_MTU_BYTES = 1500
_SHOWN = 8
"""The most nodes with a fault, and as many without, whose MTU a finding shows."""


@rule("peers", scope=("node", "link", "system"), owner="admin")
def net_mtu_mismatch_ip(job: Job) -> Iterator[Outcome]:
    """Full-size packets do not arrive.

    Small messages pass, so the rendezvous works. Then Gloo and NCCL's sockets hang in the first large transfer. A
    tunnel, a VLAN or a switch port carries less than the MTU of the network interfaces, and the ICMP message that
    reports this is filtered.

    Found by sending data in segments as large as the interface makes them: the connection stays open, and no data is
    acknowledged. A node with a smaller MTU than others is not a fault, because TCP negotiates the smaller one. Jumbo
    frames that only some nodes have, and that do not arrive, are a warning, because datagrams and RDMA negotiate
    nothing. Any of it is a warning on a path that only the rendezvous uses, and an info where only a library would use
    the path for which the job was not made.

    Fix: Set an MTU that the path carries, the same on all network interfaces, switches and tunnels, or fix the path.

        ping -M do -s 1472 -c 3 {host}
        sudo ip link set dev {interface} mtu {mtu|1400}

    See: https://github.com/NVIDIA/nccl/issues/1524
    """
    judged = [use.judged(fault) for use in path_uses(job) for fault in _eaten(use.job)] if stalled(job) else []
    if not judged and any(False in t.datagrams.values() for t in job.peers):
        judged = [use.judged(fault) for use in path_uses(job) for fault in _jumbo_on_one_side(use.job)]
    yield from judged


def _eaten(job: Job) -> Iterator[Fault]:
    ways = Ways(job, transferred(job))
    eaten = {}
    for way, transfers in stalled(job).items():
        if lost := [sent for sent in transfers if nothing_arrived(sent)]:
            eaten[way] = f"connected, then no data was acknowledged for {lost[0].seconds:.1f} s"
    if eaten:
        source, target = next(iter(eaten))
        node = next((n for n in job.nodes if n.key == source), job.nodes[0])
        host = ways.name([target]) if len(job.nodes) > 1 else "localhost"
        values = {"host": [quote(host)], "interface": [quote(interface_name(job, node))]}
        yield ways.finding(eaten, "send full-size packets to", "although small ones arrive", values=values)


def _jumbo_on_one_side(job: Job) -> Iterator[Fault]:
    """Yield the nodes whose full-size datagrams do not reach most others; smaller ones do."""
    lost: dict[str, list[int]] = {}
    tried: Counter[str] = Counter()
    for (source, _), trials in by_way(job).items():
        for t in trials:
            if len(t.datagrams) != 2:
                continue
            sizes = sorted(t.datagrams)
            if sizes[1] > _USUAL_MTU_BYTES and t.datagrams[sizes[0]]:
                tried[source] += 1
                if not t.datagrams[sizes[1]]:
                    lost.setdefault(source, []).append(sizes[1])
    odd: dict[tuple[int, str], list[NodeFacts]] = {}
    for node in job.nodes:
        # A node that fails towards only a few others is healthy: those have the smaller MTU.
        if 2 * len(lost.get(node.key, ())) > tried[node.key]:
            odd.setdefault((max(lost[node.key]), interface_name(job, node)), []).append(node)
    for (size, interface), nodes in odd.items():
        keys = {node.key for node in nodes}
        shown = [*nodes[:_SHOWN], *islice((node for node in job.nodes if node.key not in keys), _SHOWN)]
        ways = {node.name: own_way(job, survey(job).reach, node) for node in shown}
        yield found(
            job,
            job.ranks_on(*nodes),
            f"{listed([node.name for node in nodes])} {'sends' if len(nodes) == 1 else 'send'} packets of up to {size} "
            "bytes, but datagrams of that size do not arrive; TCP works because it negotiates a smaller MSS",
            severity="warning",
            evidence={"mtu": size} | {f"MTU of {name}": way.mtu_bytes for name, way in ways.items() if way},
            values={"host": [], "interface": [quote(interface)], "mtu": [str(_USUAL_MTU_BYTES)]},
        )


@rule("peers", scope="link", owner="admin")
def net_mtu_mismatch_ib(job: Job) -> Iterator[Outcome]:
    """InfiniBand or RoCE ports of the nodes have different active MTUs.

    NCCL fails with "local access violation work queue error" or IBV_WC_LOC_LEN_ERR, or hangs: since 2.20 it no longer
    uses the smaller of the two.

    Found by the active MTU that ibv_devinfo reports for every active port that NCCL uses, by NCCL_IB_HCA and
    NCCL_IB_DISABLE, where it is installed.

    Fix: Set the same MTU on all adapters and switch ports.

        ibv_devinfo | grep -E 'hca_id|active_mtu'

    See: https://github.com/NVIDIA/nccl/issues/1957
    """
    sizes = _used(job)
    keys = _unlike(sizes)
    odd = [node for node in job.nodes if node.key in keys]
    if not odd:
        return
    yield found(
        job,
        job.ranks_on(*odd),
        f"the InfiniBand ports of {listed([n.name for n in odd])} have an active MTU of "
        f"{listed([str(size) for size in sorted({s for n in odd for s in sizes[n.key].values()})])} bytes; "
        "expected the same on all nodes",
        evidence={n.name: [f"{p}: {size}" for p, size in sizes[n.key].items()] for n in job.nodes if n.key in sizes},
    )


def _used(job: Job) -> Sizes:
    """Return the MTUs of the ports that NCCL uses; of all ports of a node where that is unknown."""
    names = {view.node.key: {line.name.replace(":", "/") for line in view.lines} for view in views(job)}
    used = {}
    for node in job.nodes:
        ports, own = node.network.ib_mtu_bytes if node.network else {}, names.get(node.key)
        if own is not None or (isinstance(node.infiniband, Infiniband) and not _by_others(job, node)):
            ports = {port: size for port, size in ports.items() if own and port in own}
        if ports:
            used[node.key] = ports
    return used


def _by_others(job: Job, node: NodeFacts) -> bool:
    """Return whether something other than NCCL's own transport may use a node's ports: MPI, a network plugin."""
    own = {"", "ib", "socket"}
    return job.asked.backend == "mpi" or any(
        value_of(job, rank, "NCCL_NET").lower() not in own for rank in job.ranks_on(node)
    )


def _unlike(sizes: Sizes) -> set[str]:
    """Return the nodes whose ports have other MTUs than those of most nodes; all without a majority."""
    groups = grouped(sizes, lambda key: tuple(sorted(set(sizes[key].values()))))
    most = max(map(len, groups.values()), default=0)
    fewer = {key for keys in groups.values() if len(keys) < most for key in keys}
    return fewer or (set(sizes) if len(groups) > 1 else set())
