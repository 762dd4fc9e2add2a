"""Rules about the paths between nodes: ephemeral ports, packet loss and rates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from shlex import quote
from statistics import median_high
from typing import NamedTuple

import msgspec

from distcheck.facts.job import Job
from distcheck.facts.network import Link, PeerTrial
from distcheck.facts.node import NodeFacts
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import SEVERITIES, Fault, Fix, NotChecked
from distcheck.rules.network import rates
from distcheck.rules.network.attempts import Ways, interface_name, nothing_arrived, ranks_of, reason
from distcheck.rules.network.ephemeral_ports import one_way, opened
from distcheck.rules.network.explained_trials import explained_trials
from distcheck.rules.network.interface_choices import link_of
from distcheck.rules.network.losses import echoes, lossy
from distcheck.rules.network.path_uses import PathUse, adapters_beside, path_uses
from distcheck.rules.network.trials import Way, by_way, stalled, transferred
from distcheck.rules.wording import are, found, grouped, listed, nodes_of, numbers_of, once, unread

_LOSS, _HEAVY_LOSS = 0.01, 0.05
"""Shares of retransmitted segments that are an error: on some paths, and on all, which the test itself may congest.

At 1 % one connection with a round trip of 0.1 ms carries at most 180 MB/s on any link.
Source: Mathis et al., The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997
"""


class _Closed(NamedTuple):
    """The paths of one use on which an endpoint was not reached."""

    use: PathUse
    ways: Ways
    shut: dict[Way, PeerTrial]
    """The failed trial on each."""
    one_way: set[Way]
    """Those whose other direction works."""

    def finding(self, failed: Collection[Way]) -> Fault:
        """Return the finding about some of them; the nodes that it names are to open their ports."""
        reasons = {way: reason(trial) for way, trial in self.shut.items() if way in failed}
        finding = self.ways.finding(reasons, "reach", "on ephemeral ports", Fix(""))
        weight = self.use.worst
        if weight == "info" and self.use.job.made_for == "nccl" and self.use.job.asked.backend == "auto":
            weight = "warning"  # without a backend, init_process_group connects Gloo's mesh, too
        return msgspec.structs.replace(
            finding,
            severity=weight,
            message=finding.message + self.use.note,
            fix=opened(self.use.job, "every node" if finding.scope == "system" else listed(finding.nodes)),
        )


@once
def _closed(job: Job) -> list[_Closed]:
    """Return the paths on which an endpoint was not reached, by use; a path only with the gravest of its uses."""
    if all(t.outcome == "met" for t in job.peers):
        return []
    gone = {p.uid for p in job.processes if p.lost}
    explained = explained_trials(job) | {(t.source, t.target, t.address) for t in job.peers if t.target in gone}
    out, into = {source for source, _ in lossy(job)}, {target for _, target in lossy(job)}
    found, reported = [], set[Way]()
    for use in sorted(path_uses(job), key=lambda use: SEVERITIES.index(use.worst)):
        peers = (t for t in use.job.peers if (t.source, t.target, t.address) not in explained)
        ways = Ways(use.job, by_way(msgspec.structs.replace(use.job, peers=tuple(peers))))
        shut = {way: t for way, trials in ways.tried.items() for t in reversed(trials) if not t.connected}
        # On a lossy path a missing answer is one of the losses.
        lost = {w for w, t in shut.items() if t.outcome == "timeout" and (w[0] in out or w[1] in into)}
        shut = {way: t for way, t in shut.items() if way not in lost and way not in reported}
        reported |= shut.keys()
        found.append(_Closed(use, ways, shut, _one_way(ways, shut)))
    return found


def _one_way(ways: Ways, shut: Mapping[Way, PeerTrial]) -> set[Way]:
    """Return the failing paths whose other direction works.

    On large jobs each node tries only some others. Where the other direction was not tried, it counts as working if
    the target is reached by no node but reaches others, or the source reaches no node but is reached.
    """
    if not shut:
        return set()
    reached = {target for source, target in ways.tried if (source, target) not in shut}
    reaching = {source for source, target in ways.tried if (source, target) not in shut}
    found = set()
    for source, target in shut:
        back = target, source
        likely = (target not in reached and target in reaching) or (source not in reaching and source in reached)
        if back not in shut and (back in ways.tried or likely):
            found.add((source, target))
    return found


@rule("peers", scope=("link", "system"), owner="admin")
def net_firewall_ephemeral(job: Job) -> Iterator[Outcome]:
    """Ephemeral ports are closed between nodes.

    Only MASTER_PORT is open. NCCL's bootstrap and sockets and Gloo's mesh listen on ephemeral ports between every
    pair. The rendezvous works, and then the job fails with "connectFullMesh failed", "No route to host" or "exceeded
    error retry count", or hangs without an error.

    Found by listening on ephemeral ports on every node, at the addresses that NCCL and Gloo use, and connecting from
    the others. No answer means that packets are dropped. Refused or unreachable, although a process listens there,
    means that a firewall rejects them. A connection that is made and not answered is no sign of a firewall, nor is a
    process that was lost. It is a warning on paths that only the rendezvous uses, which needs MASTER_PORT alone, or
    Gloo in a job for GPUs; an info where no library of the job uses them.

    Fix: allow all TCP between the nodes of a job, or open the configured range of net.ipv4.ip_local_port_range. If you
    narrow the range, keep what the job needs: on each node, for each of its ranks, one port for every other rank and,
    with NCCL over sockets, 18 (its data sockets and two) for each of five neighbours in each of up to 32 channels. A
    job that exhausts the range fails with "Cannot assign requested address".
    See: https://github.com/NVIDIA/nccl/issues/388
    """
    if "peers" in job.asked.looks and not job.peers and len(job.processes) > 1 and job.met:
        yield NotChecked(reason="connections between peers were not tried")
    yield from _unanswered(job)
    for closed in _closed(job):
        if cut_off := closed.shut.keys() - closed.one_way:
            yield closed.finding(cut_off)


def _unanswered(job: Job) -> Iterator[NotChecked]:
    """Yield the processes that did not answer on a connection: no firewall dropped its packets, and nothing passed."""
    lost = {p.uid for p in job.processes if p.lost}
    silent = {t.target for t in job.peers if t.outcome == "silent" and t.target not in lost}
    if silent:
        ranks = ranks_of(job, silent)
        reason = "no answer on an open connection: the process was suspended or had no CPU"
        yield NotChecked(ranks=numbers_of(ranks), nodes=nodes_of(job, ranks), reason=reason)


@rule("peers", scope="link", owner="admin")
def net_asymmetric_route(job: Job) -> Iterator[Outcome]:
    """One node reaches another on an ephemeral port, but the reverse direction fails.

    The library picks the direction in which each pair of ranks connects, so whether the job hangs depends on chance.
    The cause is a firewall rule on the node that is not reached or, where it has several adapters, its reverse path
    filtering.

    Found by trying each pair in both directions; net-subnet-mismatch reports address translation. On paths that the
    job's libraries do not use it is a warning or an info, as with net-firewall-ephemeral.

    Fix: open the firewall of the unreachable node; if it has several adapters, loosen reverse path filtering.
    """
    for closed in _closed(job):
        if closed.one_way:
            fix, certain = one_way(job, closed.one_way)
            ranks = job.ranks_on(*certain)
            where = {"ranks": numbers_of(ranks), "nodes": nodes_of(job, ranks)} if ranks else {}
            yield msgspec.structs.replace(closed.finding(closed.one_way), fix=fix, **where)


@rule("peers", scope=("link", "system"), owner="admin")
def net_packet_loss(job: Job) -> Iterator[Outcome]:
    """Packets are lost between nodes.

    TCP retransmits them with growing delays: collectives become many times slower, and some take seconds. Typical
    causes are a bad cable or optic, a duplex mismatch, an overloaded switch or host.

    Found by the kernel's count of retransmitted segments (TCP_INFO) while 2 MiB went from node to node, with some more
    packet by packet, and by transfers that stall. All paths into a node are counted together, and all paths out of it.
    Losses are reported when a network that loses 0.5 % would show so many in less than one of 10,000 runs. From 1 % on
    they are an error; from 5 % where every path has losses. On a path that only the rendezvous uses they are a warning,
    and an info where only a library would use it for which the job was not made.

    Fix: Check the error counters of the network interface, its cable and the switch port.

        ethtool -S {interface} | grep -iE 'err|drop|crc'
    """
    for use in path_uses(job) if lossy(job) or stalled(job) else ():
        yield from map(use.judged, _losses(use.job))


def _losses(job: Job) -> Iterator[Fault]:
    ways = Ways(job, transferred(job))
    # A slow link drops packets when its queue is full; losses on all paths of a node are another fault.
    slow = {end.node for end in rates.below(job)}
    lost = {
        way: n
        for way, n in lossy(job).items()
        if n.ways > 1 or not (rates.of(job).is_slow(way) or not slow.isdisjoint(way))
    }
    losing = {way: f"{n.repeated} of {n.segments} segments retransmitted, {n.share:.1%}" for way, n in lost.items()}
    shares = [n.share for n in lost.values()]
    for way, transfers in stalled(job).items():
        sent = [s for s in transfers if s.repeated > 0 and not nothing_arrived(s)]  # otherwise the receiver is busy
        halted = next((s for s in sent if not echoes(s.repeated / max(1, s.segments), ways.tried, way)), None)
        if halted:
            losing[way] = f"the transfer stalled after {count(halted.bytes, 'byte')}"
            shares.append(1.0)
    if losing:
        everywhere = len(job.nodes) > 2 and losing.keys() == ways.tried.keys()
        yield ways.finding(
            losing,
            "send to",
            "without packet loss",
            severity="error" if max(shares) >= (_HEAVY_LOSS if everywhere else _LOSS) else "warning",
            values={"interface": [quote(interface_name(job, job.nodes[0]))]},
        )


@rule("peers", severity="warning", scope="node", owner="admin")
def net_nic_down_or_slow(job: Job) -> Iterator[Outcome]:
    """A node's network interface is slower than it should be.

    Every collective runs at the pace of the slowest node. Typical causes are a link that negotiated 1 Gbit/s instead of
    100, half duplex, or a bond that lost a member.

    Found by comparing the links' reported speeds across the nodes, and by sending 2 MiB from node to node. A node is
    slow when every path to it, or every path from it, is at less than 20 % of the rate between the others, and stays
    below when its fastest path is measured again while the other nodes are idle. So it is, with any number of nodes,
    below 20 % of the rate that its adapter and the other end's report: of at most 2 Gbit/s, which a busy CPU moves,
    and of 1 Gbit/s if the adapter is wireless. The made-up rates of virtual adapters are not judged, and where a long
    round trip decides how long 2 MiB take, nothing is. It is an info finding where NCCL uses InfiniBand or RoCE
    adapters on all nodes, and this interface belongs to none of them.

    Fix: Check the cable, the switch port and the members of a bond, and look for a traffic limit; replace a wireless
    adapter by a wired one.

        {look|ethtool INTERFACE}
        tc qdisc show dev {interface}
    """
    links = {node.key: link_of(node, interface_name(job, node)) for node in job.nodes}
    speeds = [link.speed_Mbps for link in links.values() if link and link.speed_Mbps]
    usual = median_high(speeds) if speeds else 0.0
    measured = rates.of(job)
    for why, sides in measured.unsure.items():
        yield from unread(job, ((rank, why) for rank in job.ranks if job.node_of(rank).key in sides))
    explained = set(measured.slow)
    for node in job.nodes:
        link = links[node.key]
        reasons = _link_faults(link, usual) if link else []
        reasons += [measured.slow[node.key].text] if node.key in measured.slow else []
        if reasons:
            explained.add(node.key)
            yield _slow_network(job, [node], interface_name(job, node), reasons)
    yield from _below_their_rate(job, explained)


def _below_their_rate(job: Job, explained: Collection[str]) -> Iterator[Outcome]:
    """Yield the nodes whose transfers are far below the rate of their adapters, without those that are explained."""
    slow = {end: path for end, path in rates.below(job).items() if end.node not in explained}
    nodes = {node.key: node for node in job.nodes}
    for name, alike in grouped(slow, lambda end: end.text).items():
        sure = [end for end in alike if slow[end].sure]
        unsure = [nodes[end.node] for end in alike if end not in sure]
        yield from unread(job, ((rank, rates.ONCE) for node in unsure for rank in job.ranks_on(node)))
        if sure:
            path = max((slow[end] for end in sure), key=lambda path: path.share)
            wired = ", as of a wired adapter" if sure[0].wireless else ""
            yield _slow_network(
                job,
                [nodes[end.node] for end in sure],
                sure[0].interface,
                [f"{name} carries {path.sent.rate / 1e6:.3g} MB/s; expected at least {path.least / 1e6:.3g}{wired}"],
                wireless=sure[0].wireless,
            )


def _slow_network(
    job: Job, nodes: list[NodeFacts], interface: str, reasons: list[str], *, wireless: bool = False
) -> Fault:
    """Return the finding about nodes whose network is slow for these reasons."""
    adapters, there = adapters_beside(job, nodes[0], interface), quote(interface)
    names = listed([node.name for node in nodes])
    return found(
        job,
        [rank for node in nodes for rank in job.ranks_on(node)],
        f"the network of {names} is slow: {'; '.join(reasons)}"
        + (f"; NCCL uses {listed(adapters, most=2)}" if adapters else ""),
        severity="info" if adapters else "warning",
        confirmed=False,
        evidence={f"reason {n}": text for n, text in enumerate(reasons, start=1)} if len(reasons) > 1 else {},
        values={"interface": [there], "look": [f"iw dev {there} link" if wireless else f"ethtool {there}"]},
    )


def _link_faults(link: Link, usual_Mbps: float) -> list[str]:  # noqa: N803 the unit's own spelling
    """Return the faults that a node's link to the others reports."""
    reasons = []
    if link.speed_Mbps and link.speed_Mbps < usual_Mbps:
        reasons.append(f"{link.name} runs at {link.speed_Mbps} Mbit/s, the links of other nodes at {usual_Mbps:.0f}")
    if link.full_duplex is False:
        reasons.append(f"{link.name} negotiated half duplex")
    down = [name for name, up in link.members.items() if not up]
    if down:
        reasons.append(f"{listed(down)} of bond {link.name} {are(down)} down")
    return reasons
