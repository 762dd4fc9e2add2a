"""Rules about the ways between nodes: ports that the kernel chooses, losses and rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median, median_high

from distcheck.facts import Job, Link, Missing, NodeFacts, PeerTrial, Transfer
from distcheck.finding import Fix, NotChecked
from distcheck.rules import Outcome, rule
from distcheck.rules.picks import explained_trials
from distcheck.rules.vocabulary import are, found, listed
from distcheck.rules.ways import Way, Ways, interface_name, nothing_arrived, reason

_FIREWALL = (
    'sudo sysctl -w net.ipv4.ip_local_port_range="50000 51000"',
    "sudo firewall-cmd --add-port=50000-51000/tcp",
)
_LOSS, _HEAVY_LOSS = 0.02, 0.05
"""Shares of segments that were sent again."""
_FEWEST_REPEATED = 8
_ECHO = 0.4
_SLOW = 0.2
"""Of the others' median rate; on machines that others use as well rates differ by half of that."""
_MOST_SLOW = 16
"""Nodes that are compared with the others, the slowest first."""


def _unreached(job: Job) -> tuple[Ways, dict[Way, PeerTrial]]:
    """Return the ways at which a door stayed shut, with the trial that tells it."""
    ways = Ways(job, explained_trials(job))
    shut = {way: next((t for t in trials if t.outcome != "met"), None) for way, trials in ways.tried.items()}
    out, into = _lossy_ends(job)
    # Where packets get lost, an answer that did not come is one of them.
    lost = {w for w, t in shut.items() if t and t.outcome == "timeout" and (w[0] in out or w[1] in into)}
    return ways, {way: t for way, t in shut.items() if t is not None and way not in lost}


def _lossy_ends(job: Job) -> tuple[set[str], set[str]]:
    """Return the nodes out of which, and into which, packets get lost on some way that was measured."""
    ways = Ways(job, transferred=True)
    lossy = [way for way, trials in ways.tried.items() if any(_loss(t) >= _LOSS for t in trials)]
    return {source for source, _ in lossy}, {target for _, target in lossy}


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

    Fix: allow all TCP between the nodes of a job, or open a range and keep the kernel to it.
    See: https://github.com/NVIDIA/nccl/issues/388
    """
    if "peers" in job.asked.looks and not job.peers and len(job.processes) > 1 and job.met:
        yield NotChecked(reason="the peers have not tried each other")
    ways, shut = _unreached(job)
    one_way = _one_way(ways, shut)
    cut_off = {w: reason(t) for w, t in shut.items() if w not in one_way}
    if cut_off:
        fix = Fix("Allow TCP between the nodes on the ports that the kernel chooses.", _FIREWALL)
        yield ways.finding(cut_off, "reach", "on ports that the kernel chooses", fix)


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
    that had to be sent again (TCP_INFO) while two megabytes went from node to node, and by transfers that come to a
    halt.

    Fix: look at the error counters of the network interface and of the switch port.
    """
    ways = Ways(job, transferred=True)
    rates = {way: max(map(_loss, trials), default=0.0) for way, trials in ways.tried.items()}

    def real(share: float, way: Way) -> bool:
        """Lost confirmations make the other side send a little again, or wait, as well; that is the same loss."""
        return share >= _ECHO * rates.get((way[1], way[0]), 0.0)

    shares = {way: share for way, share in rates.items() if share >= _LOSS and real(share, way)}
    lossy = {way: f"{share:.0%} of the segments had to be sent again" for way, share in shares.items()}
    for way, trials in ways.tried.items():
        sent = [t.transfer for t in trials if t.transfer and _halted(t.transfer)]
        halted = next((s for s in sent if real(s.repeated / max(1, s.segments), way)), None)
        if halted:
            lossy[way], shares[way] = f"the transfer came to a halt after {halted.bytes} bytes", 1.0
    if lossy:
        node = job.nodes[0]
        yield ways.finding(
            lossy,
            "send to",
            "without losing packets",
            Fix(
                "Look at the error counters of the network interface, its cable and the switch port.",
                (f"ethtool -S {interface_name(job, node)} | grep -iE 'err|drop|crc'",),
            ),
            severity="error" if max(shares.values()) >= _HEAVY_LOSS else "warning",
        )


def _loss(trial: PeerTrial) -> float:
    sent = trial.transfer
    if sent is None or not sent.segments or sent.repeated < _FEWEST_REPEATED or nothing_arrived(sent):
        return 0.0
    return sent.repeated / sent.segments


def _halted(sent: Transfer) -> bool:
    """Whether a transfer stopped because of losses: one to a process that is too busy to read repeats nothing."""
    return sent.stalled and sent.repeated > 0 and not nothing_arrived(sent)


@rule("peers")
def net_nic_down_or_slow(job: Job) -> Iterator[Outcome]:
    """A node's network interface is slower than it should be.

    A link that negotiated 1 Gbit/s instead of 100, half duplex, or a bond that lost a member: every collective runs at
    the pace of the slowest node. Found by comparing what the links say of themselves over the nodes, and by sending
    two megabytes from node to node: a node to which, or from which, every way is five times slower than those between
    the others.

    Fix: look at cable and switch port.
    """
    ways = Ways(job)
    links = {node.key: _link(job, node) for node in job.nodes}
    usual = _usual_speed(links.values())
    slow = _slow_sides(ways)
    for node in job.nodes:
        link = links[node.key]
        reasons = _says_of_itself(link, usual) if link else []
        reasons += [slow[node.key]] if node.key in slow else []
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


def _slow_sides(ways: Ways) -> dict[str, str]:
    """Return the sides to which, or from which, every way is far slower than the ways between the others.

    What a device queues in one direction delays the answers to the other, so that mostly both are slow.
    """
    if len(ways.job.nodes) < 3:
        return {}
    rates, seen = {}, {}
    for way, trials in ways.tried.items():
        sent = [t.transfer for t in trials if t.transfer and not t.transfer.stalled and t.transfer.seconds > 0]
        if sent and not any(map(_loss, trials)):
            # Waiting for a CPU excuses a side; it does not make the others much faster than they were seen to be.
            rates[way] = max(s.rate for s in sent)
            seen[way] = max(min(s.rate, 2 * s.bytes / s.seconds) for s in sent)
    best: dict[str, dict[str, list[float]]] = {}
    for (source, target), rate in rates.items():
        best.setdefault(source, {}).setdefault("to", []).append(rate)
        best.setdefault(target, {}).setdefault("from", []).append(rate)
    fastest = {
        side: {word: max(own) for word, own in both.items() if len(own) > 1} for side, both in sorted(best.items())
    }
    found = {}
    for side in sorted(fastest, key=lambda side: min(fastest[side].values(), default=math.inf))[:_MOST_SLOW]:
        usual = median([rate for way, rate in seen.items() if side not in way] or [0.0])
        slow = {word: rate for word, rate in fastest[side].items() if rate < _SLOW * usual}
        if slow:
            found[side] = (
                f"at most {max(slow.values()) / 1e6:.0f} MB/s {' and '.join(sorted(slow, reverse=True))} the others, "
                f"between which {usual / 1e6:.0f} MB/s are usual"
            )
    return found


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
