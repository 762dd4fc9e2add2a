"""Rules about the ways between nodes: ports that the kernel chooses, losses and rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median_high

from distcheck.facts import Job, Link, Missing, NodeFacts, PeerTrial, Transfer
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.network import rates
from distcheck.rules.network.attempts import Way, Ways, interface_name, nothing_arrived, reason
from distcheck.rules.network.ephemeral_ports import opened
from distcheck.rules.network.losses import echoes, lossy
from distcheck.rules.network.selected_interfaces import explained_trials
from distcheck.rules.wording import are, found, listed, nodes_of, numbers_of

_LOSS, _HEAVY_LOSS = 0.01, 0.05
"""Shares of segments sent again that are an error: on some ways, and on all, which the look itself may crowd.

At 1 % one connection with a round trip of 0.1 ms carries at most 180 MB/s, whatever the link does.
Source: Mathis et al., The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm, 1997
"""


def _unreached(job: Job) -> tuple[Ways, dict[Way, PeerTrial]]:
    """Return the ways at which a door stayed shut, with the trial that tells it."""
    ways = Ways(job, explained_trials(job))
    shut = {way: next((t for t in trials if t.outcome != "met"), None) for way, trials in ways.tried.items()}
    out, into = {source for source, _ in lossy(job)}, {target for _, target in lossy(job)}
    # Where packets get lost, an answer that did not come is one of them.
    lost = {w for w, t in shut.items() if t and t.outcome == "timeout" and (w[0] in out or w[1] in into)}
    return ways, {way: t for way, t in shut.items() if t is not None and way not in lost}


def _one_way(ways: Ways, shut: Mapping[Way, PeerTrial]) -> set[Way]:
    """Return the shut ways of which the other direction works.

    Of many nodes each tries some others only. Where the other direction was not tried, it works if the node that is
    not reached, by anybody, reaches others; and so if the node that reaches nobody is reached.
    """
    reached = {target for source, target in ways.tried if (source, target) not in shut}
    reaching = {source for source, target in ways.tried if (source, target) not in shut}
    found = set()
    for source, target in shut:
        back = target, source
        likely = (target not in reached and target in reaching) or (source not in reaching and source in reached)
        if back not in shut and (back in ways.tried or likely):
            found.add((source, target))
    return found


@rule("peers")
def net_firewall_ephemeral(job: Job) -> Iterator[Outcome]:
    """Ports that the kernel chooses are closed between nodes.

    Only MASTER_PORT is open. NCCL's bootstrap and sockets and Gloo's mesh listen on kernel-chosen ports between
    every pair: the rendezvous works, and then "connectFullMesh failed", "No route to host" or "exceeded error retry
    count" follows, or nothing at all.

    Found by letting every node listen on such ports, at the addresses that NCCL and Gloo take, and every other one
    connect. No answer means that packets are dropped; refused or unreachable, though somebody listens there, that a
    firewall rejects them.

    Fix: allow all TCP between the nodes of a job, or open the range of net.ipv4.ip_local_port_range as it is. A
    narrower range must hold what the job needs: on each node, for each of its ranks, a port for every other rank and,
    with NCCL over sockets, 18 (its data sockets and two) for each of five neighbours in each of up to 32 channels. A
    job that exhausts the range ends with "Cannot assign requested address".
    See: https://github.com/NVIDIA/nccl/issues/388
    """
    if "peers" in job.asked.looks and not job.peers and len(job.processes) > 1 and job.met:
        yield NotChecked(reason="the peers have not tried each other")
    ways, shut = _unreached(job)
    one_way = _one_way(ways, shut)
    cut_off = {w: reason(t) for w, t in shut.items() if w not in one_way}
    if cut_off:
        yield ways.finding(cut_off, "reach", "on ports that the kernel chooses", opened(job))


@rule("peers")
def net_asymmetric_route(job: Job) -> Iterator[Outcome]:
    """One node reaches another on a kernel-chosen port, and not the other way round.

    Every pair of ranks connects in a direction that the library picks, so the job hangs or not by luck. A one-sided
    firewall rule, reverse path filtering or address translation does this. Found by trying each pair both ways.

    Fix: open the firewall of the node that is not reached; with several networks, loosen reverse path filtering.
    """
    ways, shut = _unreached(job)
    apart = _one_way(ways, shut)
    one_way = {w: reason(t) for w, t in shut.items() if w in apart}
    if one_way:
        fix = Fix(
            "Allow TCP in both directions on the ports that the kernel chooses; with several networks, loosen "
            "reverse path filtering.",
            ("sudo nft list ruleset", "sudo sysctl -w net.ipv4.conf.all.rp_filter=2"),
        )
        yield ways.finding(one_way, "reach", "on ports that the kernel chooses", fix)


@rule("peers")
def net_packet_loss(job: Job) -> Iterator[Outcome]:
    """Packets get lost on the way between nodes.

    TCP sends them again, later every time: collectives become many times slower, and now and then one takes seconds.
    A bad cable or optic, a duplex mismatch, an overloaded switch or host. Found by the kernel's count of segments
    that had to be sent again (TCP_INFO) while 2 MiB went from node to node, and some more packet by packet,
    and by transfers that come to a halt. All ways into a node are counted together, and all out of it: losses are
    reported when a network that loses 0.5 % would show so many in less than one of 10,000 runs. From 1 % on they are
    an error; from 5 % where no way is without them.

    Fix: look at the error counters of the network interface and of the switch port.
    """
    ways = Ways(job, transferred=True)
    # A slow link's queue fills until it drops packets; what all ways of a node lose alike is another fault.
    lost = {way: n for way, n in lossy(job).items() if n.ways > 1 or not rates.of(job).is_slow(way)}
    losing = {way: f"{n.repeated} of {n.segments} segments retransmitted, {n.share:.1%}" for way, n in lost.items()}
    shares = [n.share for n in lost.values()]
    for way, trials in ways.tried.items():
        sent = [t.transfer for t in trials if t.transfer and _halted(t.transfer)]
        halted = next((s for s in sent if not echoes(s.repeated / max(1, s.segments), ways, way)), None)
        if halted:
            losing[way] = f"the transfer came to a halt after {halted.bytes} bytes"
            shares.append(1.0)
    if losing:
        node = job.nodes[0]
        everywhere = len(job.nodes) > 2 and losing.keys() == ways.tried.keys()
        yield ways.finding(
            losing,
            "send to",
            "without losing packets",
            Fix(
                "Look at the error counters of the network interface, its cable and the switch port.",
                (f"ethtool -S {interface_name(job, node)} | grep -iE 'err|drop|crc'",),
            ),
            severity="error" if max(shares) >= (_HEAVY_LOSS if everywhere else _LOSS) else "warning",
        )


def _halted(sent: Transfer) -> bool:
    """Whether a transfer stopped because of losses: one to a process that is too busy to read repeats nothing."""
    return sent.stalled and sent.repeated > 0 and not nothing_arrived(sent)


@rule("peers")
def net_nic_down_or_slow(job: Job) -> Iterator[Outcome]:
    """A node's network interface is slower than it should be.

    A link that negotiated 1 Gbit/s instead of 100, half duplex, or a bond that lost a member: every collective runs at
    the pace of the slowest node. Found by comparing what the links say of themselves over the nodes, and by sending
    2 MiB from node to node: a node to which, or from which, every way is at less than 20 % of the rate between the
    others, and is so again when its fastest way is measured once more while the other nodes are quiet. Where a
    long round trip decides how long 2 MiB take, the rate is not judged.

    Fix: look at cable and switch port.
    """
    ways = Ways(job)
    links = {node.key: _link(job, node) for node in job.nodes}
    usual = _usual_speed(links.values())
    measured = rates.of(job)
    for why, sides in measured.unsure.items():
        ranks = ways.ranks(ways.among(sides))
        yield NotChecked(ranks=numbers_of(ranks), nodes=nodes_of(job, ranks), reason=why, required=False)
    for node in job.nodes:
        link = links[node.key]
        reasons = _says_of_itself(link, usual) if link else []
        reasons += [measured.slow[node.key].words] if node.key in measured.slow else []
        if reasons:
            name = interface_name(job, node)
            yield found(
                job,
                job.ranks_on(node),
                f"the network of {node.name} is slow: {'; '.join(reasons)}",
                Fix("Look at the cable, the switch port and the members of a bond.", (f"ethtool {name}",)),
                severity="warning",
                scope="node",
                owner="admin",
                confirmed=False,
                evidence={f"reason {n}": text for n, text in enumerate(reasons, start=1)} if len(reasons) > 1 else {},
            )


def _usual_speed(links: Iterable[Link | None]) -> float:
    speeds = [link.speed_Mbps for link in links if link and link.speed_Mbps]
    return median_high(speeds) if speeds else 0.0


def _says_of_itself(link: Link, usual_Mbps: float) -> list[str]:  # noqa: N803 the unit's own spelling
    """Return what a node's link to the others says of itself that it should not."""
    reasons = []
    if link.speed_Mbps and link.speed_Mbps < usual_Mbps:
        reasons.append(f"{link.name} runs at {link.speed_Mbps} Mbit/s, those of the others at {usual_Mbps:.0f}")
    if link.full_duplex is False:
        reasons.append(f"{link.name} has negotiated half duplex")
    down = [name for name, up in link.members.items() if not up]
    if down:
        reasons.append(f"of the bond {link.name} {listed(down)} {are(down)} down")
    return reasons


def _link(job: Job, node: NodeFacts) -> Link | None:
    """Return the link by which a node and rank 0 reach each other."""
    links = node.network.links if node.network and not isinstance(node.network.links, Missing) else ()
    name = interface_name(job, node)
    return next((link for link in links if link.name == name), None)
