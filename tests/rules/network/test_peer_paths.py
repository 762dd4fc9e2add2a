"""The paths between nodes: ephemeral ports, packet sizes, losses and rates."""

from __future__ import annotations

import math
import random
import re

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Gid, Hca, HcaPort, Infiniband
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Interface, Link, NetworkFacts, PeerTrial, Resolution, Transfer
from distcheck.facts.rank import RankRun
from distcheck.rollcall.peers import choose
from distcheck.rollcall.protocol import PeerDoor
from distcheck.rules.network.ephemeral_ports import opened

LOOKS = ("environment", "meeting", "peers")
OURS = ()  # the findings of all families
GOOD = Transfer(bytes=2 << 20, seconds=0.02, stalled=False, segments=1450)
BLACK_HOLE = Transfer(bytes=0, seconds=1.6, stalled=True, segments=14, repeated=4)
FROM_1_TO_2 = [(0, 1)]


def link(n, name="eth0", **fields):
    return Link(
        **{"name": name, "mac": f"02:00:00:00:00:{n % 256:02x}", "kind": "physical"}
        | {"speed_Mbps": 100_000, "full_duplex": True, "driver": "virtio_net"}  # whose rate is no limit
        | fields
    )


def network(n, *links, **fields):
    name = Resolution(name=f"node{n}", addresses=(f"10.0.0.{n}",), seconds=0.001)
    return NetworkFacts(
        links=links or (link(n),), own_name=name, own_name_binds=f"10.0.0.{n}", machine_id=f"m{n}", **fields
    )


@pytest.fixture
def of(job_of, change):
    """Build a healthy job whose nodes tried each other: all pairs up to 64 nodes, else a schedule."""

    def of(nodes=4, per_node=1, **more):
        job = job_of(nodes, per_node, looks=LOOKS, **more)
        for n, node in enumerate(job.nodes, start=1):
            interfaces = (
                Interface("lo", "127.0.0.1", up=True, mtu_bytes=65536, prefix_bits=8),
                Interface("eth0", f"10.0.0.{n}", up=True, mtu_bytes=1500, prefix_bits=24),
            )
            assert node.interfaces[1].address == interfaces[1].address
            job = change.node(job, n - 1, interfaces=interfaces, network=network(n))
        return change.job(job, peers=trials(job))

    return of


def trials(job):
    speaks = speakers(job)
    doors = {uid: [PeerDoor(uid, f"10.0.0.{n}", 40000)] for n, uid in enumerate(speaks, start=1)}
    return tuple(
        PeerTrial(
            source=source,
            target=door.uid,
            address=door.address,
            port=door.port,
            outcome="met",
            seconds=0.01,
            uses=("master", "nccl", "gloo"),
            transfer=GOOD,
            datagrams={256: True, 1500: True},
            round_trip_seconds=1e-4,
        )
        for source, chosen in choose(doors).items()
        for door in chosen
    )


def speakers(job):
    """Return the processes that try each other: one per node, on one node the first two."""
    if len(job.nodes) < 2:
        return [p.uid for p in job.processes][:2]
    return [next(p.uid for p in job.processes if p.node == node.key) for node in job.nodes]


def change_ways(change, job, ways, **fields):
    """Return the job with changed trials on these paths: pairs of positions, or a predicate."""
    place = {uid: n for n, uid in enumerate(speakers(job))}
    chosen = ways if callable(ways) else lambda source, target: (source, target) in ways
    changed = []
    for t in job.peers:
        new = chosen(place[t.source], place[t.target])
        changed.append(change.job(t, **fields) if new else t)
    return change.job(job, peers=tuple(changed))


def closed(change, job, ways, outcome="timeout", detail="no answer within 3.0 s"):
    return change_ways(change, job, ways, outcome=outcome, detail=detail, transfer=None, datagrams={})


def to(n):
    return lambda _source, target: target == n


def out_of(n):
    return lambda source, _target: source == n


def at(n):
    return lambda source, target: n in {source, target}


def always(_source, _target):
    return True


def both(a, b):
    return [(a, b), (b, a)]


@pytest.fixture
def said(judge):
    return lambda job: [(f.rule, f.severity, f.nodes) for f in judge(job).findings]


# -- healthy


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (1, 8), (2, 1), (2, 8), (4, 2), (64, 1), (65, 1), (65, 8), (100, 1), (128, 1)]
)
def test_a_healthy_job_is_silent(of, judge, shape):
    assert judge(of(*shape))[:2] == ((), ())


def test_a_job_without_network_facts_is_silent(of, judge, change):
    job = change.node(of(4), None, network=None)
    assert judge(change.job(job, peers=tuple(change.job(t, transfer=None, datagrams={}) for t in job.peers)))[:2] == (
        (),
        (),
    )


# -- which nodes are named


def _shut(outcome="timeout", detail="no answer within 3.0 s"):
    return {"outcome": outcome, "detail": detail, "transfer": None, "datagrams": {}}


def _losing(share, segments=1450):
    return Transfer(bytes=2 << 20, seconds=0.9, stalled=False, segments=segments, repeated=round(share * segments))


def _taking(seconds):
    """Return a transfer that took as long when repeated while the others were idle."""
    return Transfer(bytes=2 << 20, seconds=seconds, stalled=False, segments=1450, repeats=True)


def _sending(transfer):
    return {"transfer": transfer}


def _far(seconds):
    return {"round_trip_seconds": seconds}


CLOSED, ONE_WAY = "net-firewall-ephemeral error link", "net-asymmetric-route error link"
EATEN, LOSSY, SLOW = "net-mtu-mismatch-ip error link", "net-packet-loss error link", "net-nic-down-or-slow warning node"
FAR_NODE, FAR_LINK = "net-high-latency error node", "net-high-latency error link"
PART = Transfer(bytes=200_000, seconds=2.0, stalled=False, segments=150, repeats=True)
HALTED = Transfer(bytes=90_000, seconds=2.0, stalled=True, segments=80, repeated=4)
UNEQUAL, MANY = [(3, 0), (4, 2), (64, 63), (65, 7), (100, 3), (128, 127)], [3, 6, 65, 128]
NAMED = [
    ((4, 2), both(0, 2), _shut(), CLOSED, [1, 3], 20,
     r"^node1 and node3 cannot reach each other on ephemeral ports \(timeout at 10.0.0.3:40000"),
    ((6, 1), both(0, 1) + both(2, 3), _shut(), CLOSED, [1, 2, 3, 4], 20,
     "^node1 and node2 cannot reach each other .*; same for 1 more pair of nodes$"),
    *[((nodes, 1), at(odd), _shut(outcome), CLOSED, [odd + 1], 20,
       rf"^node{odd + 1} and node.* cannot reach each other on ephemeral ports \({outcome} at ")
      for nodes, odd in UNEQUAL for outcome in ("refused", "unreachable", "timeout")],
    ((6, 1), lambda s, t: {s, t} & {1, 4}, _shut(), CLOSED, [2, 5], 20,
     "^node2 and node5 cannot reach any other node in either direction on ephemeral"),
    ((5, 1), lambda s, t: {s, t} in ({2, 0}, {2, 3}), _shut(), CLOSED, [3], 20, ""),
    *[((nodes, 1), always, _shut("refused", "[Errno 111] Connection refused"), "net-firewall-ephemeral error system",
       range(1, nodes + 1), 30, r"^no node can reach any other on ephemeral ports \(refused at ") for nodes in MANY],
    ((2, 2), always, _shut(), CLOSED, [1, 2], 20, "^node1 and node2 cannot reach each other"),
    ((1, 2), always, _shut(), CLOSED, [1], 20,
     r"^rank 0 \(node1 pid 100\) and rank 1 \(node1 pid 101\) cannot reach each other"),
    ((100, 1), [(3, 5)], _shut(), CLOSED, [4, 6], 20, "^(?!.*the other direction)"),  # which was not tried
    ((4, 2), [(2, 1)], _shut(), ONE_WAY, [2], 20,
     r"^node3 cannot reach node2 on ephemeral ports, but the other direction works \(timeout at 10.0.0.2:40000,"),
    ((2, 1), FROM_1_TO_2, _shut(), ONE_WAY, [2], 20, "^node1 cannot reach node2 on ephemeral ports, but the other"),
    ((5, 1), [(0, 2), (3, 2)], _shut(), ONE_WAY, [3], 20, "^node1 and node4 cannot reach node3 on ephemeral .*, but"),
    *[((nodes, 1), to(odd), _shut(), ONE_WAY, [odd + 1], 20,
       f" cannot reach node{odd + 1} on ephemeral ports, but the other") for nodes, odd in [*UNEQUAL, (66, 8)]],
    *[((nodes, 1), out_of(odd), _shut(), ONE_WAY, [odd + 1], 20, f"^node{odd + 1} cannot reach node")
      for nodes, odd in [*UNEQUAL, (66, 8)]],
    *[((nodes, 1), to(2), _sending(BLACK_HOLE), EATEN, [3], 20,
       " cannot send full-size packets to node3 although small ones arrive, but .*no data was acknowledged for 1.6 s")
      for nodes in (4, 65, 128)],
    ((4, 2), at(3), _sending(BLACK_HOLE), EATEN, [4], 20, "cannot send full-size packets to each other"),
    ((2, 1), always, _sending(BLACK_HOLE), EATEN, [1, 2], 20, ""),
    ((4, 1), always, _sending(BLACK_HOLE), "net-mtu-mismatch-ip error system", [1, 2, 3, 4], 30, ""),
    *[((nodes, 2), out_of(1), _sending(_losing(lost / 1450)), f"net-packet-loss {severity} link", [2], code,
       rf"^node2 cannot send to node1, node3.* without packet loss, but the other direction works \({words}\)$")
      for nodes, lost, words, severity, code in [
        (4, 145, "435 of 4350 segments retransmitted, 10.0%", "error", 20),
        (4, 29, "87 of 4350 segments retransmitted, 2.0%", "error", 20),
        (28, 15, "405 of 39150 segments retransmitted, 1.0%", "error", 20),
        (28, 13, "351 of 39150 segments retransmitted, 0.9%", "warning", 0)]],
    ((4, 1), always, _sending(_losing(0.03)), "net-packet-loss warning system", [1, 2, 3, 4], 0, ""),
    ((4, 1), always, _sending(_losing(0.1)), "net-packet-loss error system", [1, 2, 3, 4], 30, ""),
    ((4, 1), to(1), _sending(_losing(0.1)), LOSSY, [2], 20,
     "^node1, node3 and node4 cannot send to node2 without packet loss, but"),
    ((65, 1), at(9), _sending(_losing(0.1)), LOSSY, [10], 20, "cannot send to each other without packet loss"),
    ((2, 1), FROM_1_TO_2, _sending(_losing(0.1)), LOSSY, [1, 2], 20,
     "^node1 cannot send to node2 without packet loss, but the other direction"),
    ((4, 1), to(1), _sending(HALTED), LOSSY, [2], 20, r"\(the transfer stalled after 90000 bytes\)"),
    *[((nodes, 2), at(2), _sending(_taking(0.18)), SLOW, [3], 0,
       "^the network of node3 is slow: at most 12 MB/s to and from the others; median between the others: 105 MB/s$")
      for nodes in (3, 4, 65)],
    *[((4, 1), ways, _sending(_taking(0.18)), SLOW, [3], 0,
       f"^the network of node3 is slow: at most 12 MB/s {word} the others; median between")
      for ways, word in ((out_of(2), "to"), (to(2), "from"))],
    ((4, 1), at(0), _sending(PART), SLOW, [1], 0, ""),
    *[((nodes, 2), at(odd), _far(0.3), FAR_NODE, [odd + 1], 20,
       f"^the round trip to node{odd + 1} is 300 ms, between the others 0.1 ms$") for nodes, odd in UNEQUAL],
    ((4, 2), both(1, 2), _far(0.25), FAR_LINK, [2, 3], 20,
     "^the round trip between node2 and node3 is 250 ms, between other nodes 0.1 ms$"),
    ((6, 1), [*both(0, 1), *both(2, 3)], _far(0.04), FAR_LINK, [1, 2, 3, 4], 20,
     "is 40 ms, between other nodes 0.1 ms; similar for 1 more pair$"),
    ((5, 1), lambda s, t: (s in {1, 3}) != (t in {1, 3}), _far(0.02), FAR_NODE, [2, 4], 20,
     "^the round trip to node2 and node4 is 20 ms, between the others 0.1 ms$"),
]  # fmt: skip
"""Nodes and ranks of each; which paths are not healthy, and how; the finding, its nodes, the exit code, the message."""


@pytest.mark.parametrize(("shape", "ways", "fields", "record", "nodes", "code", "words"), NAMED)
def test_what_the_paths_show_is_one_finding_about_the_nodes_at_fault(
    of, change, only, shape, ways, fields, record, nodes, code, words
):
    finding, exit_code = only(change_ways(change, of(*shape), ways, **fields))
    assert (f"{finding.rule} {finding.severity} {finding.scope}", exit_code) == (record, code)
    assert finding.nodes == tuple(f"node{n}" for n in nodes)
    assert finding.ranks == tuple(rank for n in nodes for rank in range((n - 1) * shape[1], n * shape[1]))
    assert re.search(words, finding.message), finding.message
    assert len([name for name in finding.evidence if not name.startswith("adapters")]) <= 9
    assert finding.confirmed == (finding.rule not in {"net-nic-down-or-slow", "net-high-latency"})


SILENT = [
    *[(4, FROM_1_TO_2, _sending(Transfer(bytes=sent, seconds=2.0, stalled=True, segments=60)))  # a busy receiver
      for sent in (4096, 64_240, 900_000)],
    (4, to(1), _sending(Transfer(bytes=0, seconds=1.6, stalled=True))),  # the kernel counts no segments
    (4, always, {"datagrams": {256: False, 9000: False}}),  # many firewalls pass only TCP
    (4, always, {"datagrams": {}}),
    (4, both(0, 1), _sending(_taking(0.5))),  # a slow pair
    (2, always, _sending(_taking(1.9))),
    (2, FROM_1_TO_2, _sending(_taking(1.9))),
    *[(4, ways, _sending(Transfer(2 << 20, 0.18, stalled=False, repeats=True, waited_seconds=0.15)))
      for ways in (out_of(1), to(1), at(1))],
    (4, out_of(1), _far(0.3)),  # it waited in a queue: the other direction was short
    (2, FROM_1_TO_2, _far(0.3)),
    (2, always, _far(0.08)),  # a job may span sites
    (4, always, _far(0.08)),
    (4, lambda s, t: (s < 2) != (t < 2), _far(0.03)),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "ways", "fields"), SILENT)
def test_what_does_not_prove_a_fault_of_the_network_is_silent(of, change, said, nodes, ways, fields):
    assert said(change_ways(change, of(nodes), ways, **fields)) == []


def _seconds(seconds, **fields):
    return _sending(Transfer(2 << 20, seconds, stalled=False, segments=1450, **fields))


BACK = Transfer(bytes=155_000, seconds=1.6, stalled=True, segments=232, repeated=2)
FIREWALL, ROUTE, LOSS, SLOW_NODE, FAR = (
    "net-firewall-ephemeral", "net-asymmetric-route", "net-packet-loss", "net-nic-down-or-slow", "net-high-latency",
)  # fmt: skip
LOSSY_2, SLOW_2 = [(LOSS, "error", 2)], [(SLOW_NODE, "warning", 2)]
ONCE = (to(1), _seconds(0.18))
FULL = _seconds(0.3, repeated=60)
TO_NODE_2 = "^node1, node3 and node4 cannot send to node2 without packet loss, but"
TOGETHER = {
    "a closed pair and a one-way pair": (6, [(both(0, 1), _shut()), ([(2, 3)], _shut())],
                                         [(FIREWALL, "error", 1, 2), (ROUTE, "error", 4)], ""),
    "no answer on a lossy path": (4, [(to(1), _sending(_losing(0.12))), (FROM_1_TO_2, _shut())], LOSSY_2, ""),
    "refused on a lossy path": (4, [(to(1), _sending(_losing(0.12))), (FROM_1_TO_2, _shut("refused"))],
                                [(ROUTE, "error", 2), *LOSSY_2], ""),
    "a lossy node is slow": (4, [(at(1), _seconds(1.9, repeated=145))], LOSSY_2, ""),
    "ACKs are lost": (4, [(to(1), _sending(_losing(0.1))), (out_of(1), _sending(_losing(0.03)))], LOSSY_2, TO_NODE_2),
    "ACKs are lost; it stalls": (4, [(to(1), _sending(_losing(0.1))), (out_of(1), _sending(BACK))], LOSSY_2, TO_NODE_2),
    "CPU wait raises a rate at most to twice the measured one": (
        4, [(always, _sending(Transfer(2 << 20, 0.02, stalled=False, segments=1450, waited_seconds=0.02))),
            (at(1), _sending(_taking(0.045)))], [], ""),
    "a fast path acquits its node": (4, [ONCE, ([(2, 1)], _seconds(0.03, repeated=18, repeats=True))], [], ""),
    "a slow port drops packets": (4, [ONCE, ([(2, 1)], _seconds(0.16, repeated=18, repeats=True))], SLOW_2,
                                  "^the network of node2 is slow: at most 13 MB/s from the others; median between"),
    "the queue of a slow link drops packets": (4, [(to(1), _sending(_taking(0.18))), ([(2, 1)], FULL)], SLOW_2, ""),
    "a lossy pair": (4, [([(2, 1)], FULL)], [(LOSS, "error", 2, 3)], ""),
    "losses elsewhere": (4, [(to(1), _sending(_taking(0.18))), ([(2, 3)], _seconds(0.02, repeated=60))],
                         [(LOSS, "error", 3, 4), *SLOW_2], ""),
    "slow twice in one direction": (4, [(at(1), _seconds(0.18)), ([(1, 2)], _sending(_taking(0.17)))], SLOW_2,
                                    "^the network of node2 is slow: at most 12 MB/s to the others; median between"),
    "two far nodes": (4, [(lambda s, t: {s, t} & {1, 3}, _far(0.3))], [(FAR, "error", 2), (FAR, "error", 4)], ""),
    "few round trips": (6, [(always, _far(None)), ([*both(0, 1), *both(2, 3)], _far(1e-4))], [], ""),
    **{f"{far} s beside {usual} s": (4, [(always, _far(usual)), (at(1), _far(far))], expected, "")
       for far, usual, expected in ((0.012, 1e-4, [(FAR, "error", 2)]), (0.003, 1e-4, [(FAR, "warning", 2)]),
                                    (0.0019, 1e-5, []), (0.03, 2e-3, []), (0.05, 2e-3, [(FAR, "error", 2)]),
                                    (0.1, 0.009, []))},
}  # fmt: skip
"""Nodes; what is not healthy on which paths, one after the other; the findings with their nodes; the first message."""


@pytest.mark.parametrize(("nodes", "changes", "expected", "words"), TOGETHER.values(), ids=TOGETHER)
def test_what_several_paths_show_together(of, change, judge, nodes, changes, expected, words):
    job = of(nodes)
    for ways, fields in changes:
        job = change_ways(change, job, ways, **fields)
    found = judge(job).findings
    assert [(f.rule, f.severity, *(int(n.removeprefix("node")) for n in f.nodes)) for f in found] == expected
    assert not words or re.search(words, found[0].message), found[0].message


# -- net-firewall-ephemeral


def test_an_unknown_range_is_not_guessed(job_of, change):
    fix = opened(change.node(job_of(2, 2), None, ephemeral_ports=Missing(reason="not read")), "node1")
    assert fix.commands == ("sysctl net.ipv4.ip_local_port_range  # on node1",)


def test_the_fix_never_narrows_the_range(of, change, only):
    finding, _ = only(closed(change, of(4, 2), both(0, 2)))
    assert finding.fix.commands[0] == "sudo firewall-cmd --add-port=32768-60999/tcp  # on node1 and node3"
    assert not any("sysctl -w" in command for command in finding.fix.commands)
    assert finding.evidence == {
        "way 1": "node1 to node3: timeout at 10.0.0.3:40000, no answer within 3.0 s",
        "way 2": "node3 to node1: timeout at 10.0.0.1:40000, no answer within 3.0 s",
    }


@pytest.mark.parametrize("nodes", [2, 4, 65])
def test_a_process_that_accepts_a_connection_and_does_not_answer_blames_no_firewall(of, change, judge, nodes):
    diagnosis = judge(closed(change, of(nodes), to(1), "silent"))
    assert (diagnosis.findings, diagnosis.verdict.exit_code) == ((), 20)
    (unseen,) = [n for n in diagnosis.not_checked if n.required]
    assert (unseen.rule, unseen.ranks, unseen.nodes) == ("net-firewall-ephemeral", (1,), ("node2",))


@pytest.mark.parametrize("outcome", ["silent", "refused", "timeout"])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (4, 1)])
def test_a_lost_process_is_not_reported_as_a_closed_path_too(of, change, only, shape, outcome):
    job = closed(change, of(*shape), to(1), outcome)
    job = change.job(job, peers=tuple(t for t in job.peers if t.source != speakers(job)[1]))
    finding, exit_code = only(change.process(job, 1, lost="did not answer in time", stage="peers"))
    assert (finding.rule, finding.ranks, exit_code) == ("probe-process-lost", (1,), 20)


def test_a_closed_path_between_others_is_reported_beside_a_lost_process(of, change, said):
    job = change.process(closed(change, of(4), [*both(0, 3), (0, 1)]), 1, lost="did not answer in time", stage="peers")
    assert sorted(said(job)) == [
        ("net-firewall-ephemeral", "error", ("node1", "node4")),
        ("probe-process-lost", "error", ("node2",)),
    ]


def test_a_failing_direction_counts_if_the_other_was_not_tried(of, change, only):
    job = of(3)
    job = closed(change, job, [(0, 1)])
    uids = speakers(job)
    job = change.job(job, peers=tuple(t for t in job.peers if (t.source, t.target) != (uids[1], uids[0])))
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("net-firewall-ephemeral", (0, 1), 20)
    assert finding.message.startswith("node1 cannot reach node2 on ephemeral ports (timeout")


def test_one_open_endpoint_of_several_is_not_enough(of, change, only):
    """NCCL and Gloo each need their own."""
    job = of(2)
    more = tuple(
        change.job(t, address=t.address.replace("10.0.0", "10.1.0"), uses=("nccl",), outcome="timeout", transfer=None)
        for t in job.peers
    )
    finding, _ = only(change.job(job, peers=job.peers + more))
    assert (finding.rule, finding.nodes) == ("net-firewall-ephemeral", ("node1", "node2"))
    assert "timeout at 10.1.0.2:40000" in finding.message


def test_untested_connections_between_peers_do_not_pass(of, change, judge):
    said = judge(change.job(of(), peers=()))
    assert (said.findings, said.verdict.exit_code) == ((), 20)
    assert [n.rule for n in said.not_checked] == ["net-firewall-ephemeral"]
    assert judge(change.job(of(1, 1), peers=()))[:2] == ((), ())


# -- paths that the libraries of the job do not use


def _beside(change, job, *uses):
    """Return the job with a second network: eth0 has the first of these uses, 10.1.0.x the second."""
    first = tuple(change.job(t, uses=uses[0]) for t in job.peers)
    second = (change.job(t, address=t.address.replace("10.0.0", "10.1.0"), uses=uses[1]) for t in job.peers)
    return change.job(job, peers=(*first, *second))


LOSING = Transfer(bytes=2 << 20, seconds=0.2, stalled=False, segments=1450, repeated=100)
RENDEZVOUS = "; {} uses another path, only the rendezvous uses this one"
ONLY = "; {} uses another path, only {} uses this one"


@pytest.mark.parametrize(
    ("ways", "fields", "name", "nodes"),
    [
        (to(1), _sending(BLACK_HOLE), "net-mtu-mismatch-ip", ("node2",)),
        (to(1), _sending(LOSING), "net-packet-loss", ("node2",)),
        (both(0, 1), _shut(), "net-firewall-ephemeral", ("node1", "node2")),
        (FROM_1_TO_2, _shut(), "net-asymmetric-route", ("node2",)),
    ],
)
@pytest.mark.parametrize(
    ("gpus", "backend", "ill", "well", "severity", "if_closed", "note"),
    [
        (1, "auto", ("master",), ("nccl",), "warning", "warning", RENDEZVOUS.format("NCCL")),
        (1, "auto", ("master", "gloo"), ("nccl",), "warning", "warning", RENDEZVOUS.format("NCCL")),
        (0, "auto", ("master", "nccl"), ("gloo",), "warning", "warning", RENDEZVOUS.format("Gloo")),
        (1, "auto", ("gloo",), ("master", "nccl"), "info", "warning", ONLY.format("NCCL", "Gloo")),
        (1, "nccl", ("gloo",), ("master", "nccl"), "info", "info", ONLY.format("NCCL", "Gloo")),
        (0, "auto", ("nccl",), ("master", "gloo"), "info", "info", ONLY.format("Gloo", "NCCL")),
        (1, "auto", ("nccl",), ("master", "gloo"), "error", "error", ""),
        (0, "auto", ("gloo",), ("master",), "error", "error", ""),
        (1, "auto", ("master",), ("master",), "error", "error", ""),
        (1, "auto", ("master",), ("gloo",), "error", "error", ""),
    ],
)
def test_a_fault_of_a_path_that_the_libraries_do_not_use_is_no_error(
    of, change, judge, ways, fields, name, nodes, gpus, backend, ill, well, severity, if_closed, note
):
    job = change.asked(_beside(change, of(4, gpus=gpus), ill, well), backend=backend)
    changed = change_ways(change, job, ways, **fields).peers
    peers = (new if own.address.startswith("10.0.") else own for own, new in zip(job.peers, changed, strict=True))
    (finding,) = judge(change.job(job, peers=tuple(peers)), "network.mtu", "network.peer_paths").findings
    expected = if_closed if "outcome" in fields else severity
    assert (finding.rule, finding.severity, finding.nodes) == (name, expected, nodes)
    assert finding.message.endswith(f"){note}")


@pytest.mark.parametrize("closed_to", ["both", "one"])
def test_the_network_of_master_addr_needs_only_master_port(of, change, judge, closed_to):
    """NCCL and Gloo use eth1; a firewall leaves only MASTER_PORT open on eth0."""
    job = change.environment(of(4, gpus=1), None, NCCL_SOCKET_IFNAME="eth1", GLOO_SOCKET_IFNAME="eth1")
    for n, node in enumerate(job.nodes, start=1):
        second = Interface("eth1", f"10.1.0.{n}", up=True, mtu_bytes=1500, prefix_bits=24)
        job = change.node(
            job, n - 1, interfaces=(*node.interfaces, second), network=network(n, link(n), link(n + 100, "eth1"))
        )
    job = _beside(change, job, ("master",), ("nccl", "gloo"))
    shut = {"10.0.0.2"} if closed_to == "one" else {f"10.0.0.{n}" for n in range(1, 5)}
    ill = (change.job(t, outcome="timeout", transfer=None) if t.address in shut else t for t in job.peers)
    said = judge(change.job(job, peers=tuple(ill)))
    name = "net-asymmetric-route" if closed_to == "one" else "net-firewall-ephemeral"
    assert [(f.rule, f.severity) for f in said.findings] == [(name, "warning")]
    assert said.verdict.exit_code == 0


def test_a_path_closed_for_several_unused_purposes_is_reported_with_the_gravest(of, change, judge):
    job = change.asked(of(4, gpus=1), backend="nccl")
    gloo = tuple(change.job(t, address=t.address.replace("10.0.0", "10.2.0"), uses=("gloo",)) for t in job.peers)
    job = _beside(change, job, ("master",), ("nccl",))
    shut = closed(change, change.job(job, peers=(*gloo, *job.peers)), [(0, 1), (1, 0)])
    open_again = (change.job(t, outcome="met") if "nccl" in t.uses else t for t in shut.peers)
    (finding,) = judge(change.job(shut, peers=tuple(open_again)), "network.peer_paths").findings
    assert (finding.rule, finding.severity) == ("net-firewall-ephemeral", "warning")
    assert finding.message.endswith("only the rendezvous uses this one")


def test_a_node_whose_ports_are_all_closed_is_reported_once(of, change, judge):
    job = _beside(change, of(4, gpus=1), ("master",), ("nccl",))
    job = change.job(job, peers=tuple(change.job(t, outcome="timeout", transfer=None) for t in job.peers))
    (finding,) = judge(job, "network.peer_paths").findings
    assert (finding.rule, finding.severity) == ("net-firewall-ephemeral", "error")


def test_a_setting_of_gloo_makes_its_path_count_beside_that_of_nccl(of, change, judge):
    job = change.environment(of(4, gpus=1), None, GLOO_SOCKET_IFNAME="eth0")
    job = _beside(change, job, ("gloo",), ("master", "nccl"))
    ill = tuple(change.job(t, transfer=BLACK_HOLE) if t.address == "10.0.0.2" else t for t in job.peers)
    (finding,) = judge(change.job(job, peers=ill), "network.mtu").findings
    assert finding.severity == "error"


def test_faults_of_a_used_and_of_an_unused_path_are_two_findings(of, change, judge):
    job = _beside(change, of(4, gpus=1), ("master",), ("nccl",))
    job = change.job(job, peers=tuple(change.job(t, transfer=BLACK_HOLE) for t in job.peers))
    assert [f.severity for f in judge(job, "network.mtu").findings] == ["error", "warning"]


# -- net-mtu-mismatch-ip


def test_the_fix_of_a_black_hole_names_the_interface_of_the_path(of, change, only):
    interfaces = (
        Interface("lo", "127.0.0.1", up=True, mtu_bytes=65536, prefix_bits=8),
        Interface("bond0", "10.0.0.1", up=True, mtu_bytes=1500, prefix_bits=24),
    )
    job = change.node(of(2), 0, interfaces=interfaces)
    finding, _ = only(change_ways(change, job, FROM_1_TO_2, transfer=BLACK_HOLE))
    assert "sudo ip link set dev bond0 mtu 1400" in finding.fix.commands


def _with_mtu(change, job, n, mtu):
    interfaces = tuple(change.job(i, mtu_bytes=mtu) if i.name == "eth0" else i for i in job.nodes[n].interfaces)
    return change.node(job, n, interfaces=interfaces)


def test_jumbo_frames_on_one_side_are_a_warning_about_that_node(of, change, only):
    job = _with_mtu(change, of(4, 2), 1, 9000)
    finding, exit_code = only(change_ways(change, job, out_of(1), datagrams={256: True, 9000: False}))
    assert (finding.rule, finding.severity, finding.scope) == ("net-mtu-mismatch-ip", "warning", "node")
    assert (finding.ranks, finding.nodes, exit_code) == ((2, 3), ("node2",), 0)
    assert finding.message.startswith("node2 sends packets of up to 9000 bytes, but datagrams of that size do not")
    assert finding.fix.commands == ("sudo ip link set dev eth0 mtu 1500",)
    assert finding.evidence["MTU of node1"] == 1500


def test_jumbo_frames_that_arrive_are_healthy_and_a_black_hole_of_them_is_one_finding(of, change, said):
    job = of(4)
    for n in range(4):
        job = _with_mtu(change, job, n, 9000)
    assert said(change_ways(change, job, always, datagrams={256: True, 9000: True})) == []
    job = change_ways(change, job, always, transfer=BLACK_HOLE, datagrams={256: True, 9000: False})
    assert [rule for rule, _, _ in said(job)] == ["net-mtu-mismatch-ip"]


def test_a_smaller_mtu_is_no_fault_of_its_node_or_of_others_with_jumbo_frames(of, change, said):
    """Datagrams of 1500 bytes do not reach a node with MTU 1400; TCP negotiates less."""
    job = _with_mtu(change, of(4), 2, 1400)
    job = change_ways(change, job, to(2), datagrams={256: True, 1500: False})
    assert said(change_ways(change, job, out_of(2), datagrams={256: True, 1400: True})) == []
    job = of(4)
    for n in (0, 1, 3):
        job = _with_mtu(change, job, n, 9000)
    job = change_ways(change, job, lambda source, _target: source != 2, datagrams={256: True, 9000: True})
    assert said(change_ways(change, job, to(2), datagrams={256: True, 9000: False})) == []


# -- net-packet-loss


def _at_random(change, job, share, seed, tries=2):
    """Return the job with random losses; `share` maps the positions of a path to its loss."""
    luck, place = random.Random(seed), {uid: n for n, uid in enumerate(speakers(job))}
    sent = []
    for t in job.peers:
        segments, each = 1450 * tries, share(place[t.source], place[t.target])
        repeated = max(0, round(luck.gauss(segments * each, math.sqrt(segments * each * (1 - each)))))
        sent.append(change.job(t, transfer=change.job(GOOD, segments=segments, repeated=repeated)))
    return change.job(job, peers=tuple(sent))


@pytest.mark.parametrize(("nodes", "tries"), [(3, 2), (4, 1), (4, 2), (16, 1)])
def test_two_percent_loss_at_one_node_is_found_with_its_direction(of, change, only, nodes, tries):
    job = of(nodes)
    for seed in range(20):
        finding, _ = only(_at_random(change, job, lambda _s, t: 0.02 * (t == 1), seed, tries))
        assert (finding.rule, finding.severity, finding.nodes) == ("net-packet-loss", "error", ("node2",)), seed
        assert " cannot send to node2 without packet loss, but the other direction works" in finding.message


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_a_network_with_few_losses_everywhere_is_not_lossy(of, change, said, nodes):
    job = of(nodes)
    for seed in range(10):
        assert said(_at_random(change, job, lambda _s, _t: 0.004, seed)) == [], seed


def test_losses_between_one_pair_are_not_counted_against_its_nodes(of, change, only):
    finding, _ = only(_at_random(change, of(4), lambda s, t: 0.05 * ((s, t) == (0, 1)), 1))
    assert (finding.rule, finding.nodes) == ("net-packet-loss", ("node1", "node2"))
    assert finding.message.startswith("node1 cannot send to node2 without packet loss, but the other direction")


def test_losses_into_two_nodes_are_not_counted_against_those_that_send_to_both(of, change, only):
    finding, _ = only(_at_random(change, of(6), lambda _s, t: 0.03 * (t in {1, 4}), 1))
    assert finding.nodes == ("node2", "node5")
    finding, _ = only(_at_random(change, of(3), lambda s, t: 0.03 * ((s, t) in {(0, 1), (2, 1), (0, 2)}), 1))
    assert {line.partition(":")[0] for line in finding.evidence.values()} == {
        "node1 to node2", "node3 to node2", "node1 to node3",
    }  # fmt: skip


@pytest.mark.parametrize("transfer", [_losing(0.004), _losing(0.1, 60), _losing(0), BLACK_HOLE, None])
def test_a_few_retransmitted_segments_are_no_loss(of, change, judge, transfer):
    job = change_ways(change, of(4), FROM_1_TO_2, transfer=transfer)
    assert "net-packet-loss" not in [f.rule for f in judge(job).findings]


# -- net-nic-down-or-slow


TEN_G, ONE_G, WIFI = {"speed_Mbps": 10_000, "driver": "ixgbe"}, {"speed_Mbps": 1_000}, {"wireless": True}


@pytest.mark.parametrize(
    ("links", "seconds", "named", "words"),
    [
        ((TEN_G, TEN_G), 0.18, ("node1", "node2"), "eth0 (10000 Mbit/s) carries 11.7 MB/s; expected at least 50"),
        ((ONE_G, ONE_G), 0.18, ("node1", "node2"), "eth0 (1000 Mbit/s) carries 11.7 MB/s; expected at least 25"),
        ((ONE_G, ONE_G), 0.06, (), ""),
        ((TEN_G, WIFI), 0.84, ("node2",), "eth0 (wireless) carries 2.5 MB/s; expected at least 25, as of a wired"),
        ((ONE_G, WIFI), 0.84, ("node2",), "eth0 (wireless) carries"),
        ((WIFI, WIFI), 0.84, ("node1", "node2"), "eth0 (wireless) carries"),
        ((WIFI, WIFI), 0.04, (), ""),
        ((TEN_G,) * 4, 0.18, ("node1", "node2", "node3", "node4"), "eth0 (10000 Mbit/s) carries 11.7 MB/s"),
        (({"speed_Mbps": 100_000, "driver": "mlx5_core"},) * 2, 0.038, (), ""),  # as much as a busy CPU passes on
        (({"speed_Mbps": 10_000, "kind": "virtual"},) * 2, 1.9, (), ""),  # veth
        (({"speed_Mbps": 10_000, "driver": "virtio_net"},) * 2, 1.9, (), ""),
        (({"speed_Mbps": None},) * 2, 1.9, (), ""),
        ((TEN_G, {"speed_Mbps": None}), 1.9, (), ""),
    ],
)
def test_below_a_fifth_of_the_weaker_adapters_rate_its_node_is_slow(of, change, judge, links, seconds, named, words):
    job = of(len(links))
    for n, fields in enumerate(links):
        job = change.node(job, n, network=network(n, link(n, **({"speed_Mbps": None, "driver": ""} | fields))))
    for sent, sure in ((_taking(seconds), True), (change.job(_taking(seconds), repeats=False), seconds > 0.5)):
        said = judge(change_ways(change, job, always, transfer=sent))
        assert [(f.rule, f.severity, f.nodes) for f in said.findings] == [
            ("net-nic-down-or-slow", "warning", named)
        ] * (sure and bool(named))
        assert [gap.nodes for gap in said.not_checked] == [named] * (not sure and bool(named))
        if sure and named:
            assert words in said.findings[-1].message


def test_what_its_adapters_rate_does_not_explain_is_no_slow_network(of, change, said):
    job = of(2)
    for n in range(2):
        job = change.node(job, n, network=network(n, link(n, **TEN_G)))
    busy, far = change.job(_taking(0.18), waited_seconds=0.17), change.job(_taking(0.18), round_trip_seconds=0.01)
    for sent in (busy, far):
        assert said(change_ways(change, job, always, transfer=sent)) == []


def test_a_node_that_is_slow_among_others_is_named_once(of, change, only):
    job = of(4)
    for n in range(4):
        job = change.node(job, n, network=network(n, link(n, **TEN_G)))
    finding, _ = only(change_ways(change, job, at(2), transfer=_taking(0.18)))
    assert (finding.nodes, "median between the others" in finding.message) == (("node3",), True)


@pytest.mark.parametrize("nodes", [3, 4, 16])
def test_rates_within_a_factor_of_four_are_noise(of, change, said, nodes):
    job = of(nodes)
    noisy = [change.job(t, transfer=_taking(0.02 + 0.06 * (7 * n % 10) / 9)) for n, t in enumerate(job.peers)]
    assert said(change.job(job, peers=tuple(noisy))) == []
    assert said(change_ways(change, job, at(1), transfer=_taking(0.08))) == []


@pytest.mark.parametrize(
    ("layers", "interface", "variables", "severity"),
    [
        (["InfiniBand"] * 4, "", {}, "info"),
        (["Ethernet"] * 4, "ens1", {}, "info"),
        (["Ethernet"] * 4, "eth0", {}, "warning"),
        (["InfiniBand"] * 3, "", {}, "warning"),
        (["InfiniBand"] * 4, "", {"NCCL_IB_DISABLE": "1"}, "warning"),
        (["InfiniBand"] * 4, "", {"NCCL_IB_HCA": "^mlx5"}, "warning"),
        (["InfiniBand"] * 4, "Socket", {}, "warning"),  # as NCCL logged
    ],
)
def test_a_slow_link_beside_the_adapters_of_nccl_is_an_info(of, change, judge, layers, interface, variables, severity):
    job = change.environment(of(4, 2, gpus=2), None, **variables)
    for n, layer in enumerate(layers):
        gids = {3: Gid(address="", interface=interface)} if layer == "Ethernet" else {}
        port = HcaPort(number=1, link_layer=layer, state="ACTIVE", gids=gids)
        job = change.node(job, n, infiniband=Infiniband(hcas=(Hca(name="mlx5_0", ports=(port,)),)))
    job = change.node(job, 1, network=network(2, link(2, speed_Mbps=1000)))
    if interface == "Socket":
        job = change.rank(job, 0, run=RankRun(pid=1, step="done", outcome="done", nccl=NcclLog(network="Socket")))
    (finding,) = judge(job, "network.peer_paths").findings
    assert (finding.rule, finding.severity, finding.nodes) == ("net-nic-down-or-slow", severity, ("node2",))
    assert finding.message.endswith("at 100000; NCCL uses mlx5_0:1") is (severity == "info")


@pytest.mark.parametrize(
    ("nodes", "odd", "fields", "words"),
    [
        (4, 2, {"speed_Mbps": 1000}, "eth0 runs at 1000 Mbit/s, the links of other nodes at 100000"),
        (2, 1, {"speed_Mbps": 1000}, "eth0 runs at 1000 Mbit/s, the links of other nodes at 100000"),
        (2, 2, {"full_duplex": False}, "eth0 negotiated half duplex"),
        (4, 3, {"members": {"eth1": True, "eth2": False}}, "eth2 of bond eth0 is down"),
    ],
)
def test_what_a_link_itself_reports_is_a_warning_about_its_node(of, change, only, nodes, odd, fields, words):
    finding, exit_code = only(change.node(of(nodes, 2), odd - 1, network=network(odd, link(odd, **fields))))
    assert (finding.rule, finding.severity, finding.scope) == ("net-nic-down-or-slow", "warning", "node")
    assert (finding.ranks, finding.nodes, exit_code) == ((2 * odd - 2, 2 * odd - 1), (f"node{odd}",), 0)
    assert finding.message == f"the network of node{odd} is slow: {words}"


def test_faster_links_links_outside_the_path_between_nodes_and_unknown_speeds_are_silent(of, change, said):
    beside = link(9, "eth7", speed_Mbps=10, full_duplex=False)
    unknown = [link(2, speed_Mbps=None, full_duplex=None)]
    for where, links in (1, [link(2, speed_Mbps=400_000)]), (1, [link(2), beside]), (1, unknown), (None, unknown):
        assert said(change.node(of(4), where, network=network(2, *links))) == []


def test_a_slow_link_and_slow_rates_of_a_node_are_one_finding(of, change, only):
    job = change.node(of(4), 1, network=network(2, link(2, speed_Mbps=100)))
    finding, _ = only(change_ways(change, job, at(1), transfer=_taking(0.18)))
    assert finding.nodes == ("node2",)
    assert "100 Mbit/s" in finding.message
    assert "at most 12 MB/s" in finding.message


@pytest.mark.parametrize("ways", [out_of(1), to(1), at(1)])
def test_a_node_that_was_slow_once_and_not_measured_again_is_not_blamed(of, change, judge, ways):
    once = change.job(_taking(0.18), repeats=False)
    said = judge(change_ways(change, of(4, 2), ways, transfer=once))
    assert (said.findings, said.verdict.exit_code) == ((), 0)
    (gap,) = said.not_checked
    assert (gap.rule, gap.nodes, gap.ranks) == ("net-nic-down-or-slow", ("node2",), (2, 3))
    assert "no time to repeat it" in gap.reason


# -- net-high-latency


def _answering(change, job, ways, seconds):
    return change_ways(change, job, ways, round_trip_seconds=seconds)


def test_the_slowest_of_several_networks_counts(of, change, only):
    job = _beside(change, of(3), ("master", "gloo"), ("nccl",))
    far = (change.job(t, round_trip_seconds=0.3) if "process-2" in {t.source, t.target} else t for t in job.peers)
    near = (new if new.uses == ("nccl",) else old for old, new in zip(job.peers, far, strict=True))
    finding, _ = only(change.job(job, peers=tuple(near)))
    assert (finding.rule, len(finding.nodes)) == ("net-high-latency", 1)


def test_without_round_trips_latency_is_not_checked(of, change, judge):
    said = judge(_answering(change, of(4), always, None))
    assert said.findings == ()
    assert [(n.rule, n.required) for n in said.not_checked] == [("net-high-latency", False)]
    partly = judge(_answering(change, of(4), out_of(0), None))
    assert partly[:2] == ((), ())


def test_the_link_speed_is_not_judged_over_a_long_round_trip(of, change, judge):
    far = Transfer(bytes=90_000, seconds=2.0, stalled=False, segments=70, round_trip_seconds=0.15, repeats=True)
    said = judge(change_ways(change, of(4, 2), at(2), transfer=far, round_trip_seconds=0.15))
    assert [f.rule for f in said.findings] == ["net-high-latency"]
    (gap,) = said.not_checked
    assert (gap.rule, gap.nodes, gap.required) == ("net-nic-down-or-slow", ("node3",), False)
    assert "round trip" in gap.reason


# -- net-mtu-mismatch-ib


def _infiniband(change, job, **sizes):
    for name, mtu in sizes.items():
        n = int(name.removeprefix("node"))
        job = change.node(job, n - 1, network=network(n, ib_mtu_bytes=mtu))
    return job


SAME, ODD = {"mlx5_0/1": 4096, "mlx5_1/1": 4096}, {"mlx5_0/1": 4096, "mlx5_1/1": 2048}
ONE, SMALLER = {"mlx5_0/1": 4096}, {"mlx5_0/1": 2048}


@pytest.mark.parametrize(
    ("nodes", "sizes", "named", "words"),
    [
        (4, (SAME, SAME, SAME, ODD), (4,),
         "the InfiniBand ports of node4 have an active MTU of 2048 and 4096 bytes; expected the same on all nodes"),
        (2, (ONE, SMALLER), (1, 2), "2048 and 4096 bytes"),
        (4, (ODD, ODD, ODD, ODD), (), ""),
        (4, (ONE,), (), ""),
    ],
)  # fmt: skip
def test_infiniband_ports_with_another_mtu_name_their_node(of, change, judge, nodes, sizes, named, words):
    job = _infiniband(change, of(nodes, 2), **{f"node{n}": mtu for n, mtu in enumerate(sizes, start=1)})
    said = judge(job)
    record = ("net-mtu-mismatch-ib", "error", "link", tuple(f"node{n}" for n in named))
    assert [(f.rule, f.severity, f.scope, f.nodes) for f in said.findings] == [record] * bool(named)
    assert all(words in f.message and f.evidence[f.nodes[-1]][-1].endswith(": 2048") for f in said.findings)


@pytest.mark.parametrize(
    ("gpus", "variables", "sizes"),
    [
        (0, "mpi", "2048 and 4096"),
        (1, {}, "2048 and 4096"),
        (1, {"NCCL_IB_HCA": "mlx5_1"}, "2048"),
        (1, {"NCCL_NET": "IBext_v8"}, "2048 and 4096"),
        *(
            (1, unused, "")
            for unused in ({"NCCL_NET": "Socket"}, {"NCCL_IB_HCA": "^=mlx5_1"}, {"NCCL_IB_DISABLE": "1"})
        ),
        (0, {}, ""),
    ],
)
def test_infiniband_ports_that_nccl_does_not_use_are_silent(of, change, judge, gpus, variables, sizes):
    job = _infiniband(change, of(4, 2, gpus=2 * gpus), node1=SAME, node2=SAME, node3=SAME, node4=ODD)
    port = HcaPort(number=1, link_layer="InfiniBand", state="ACTIVE")
    hcas = tuple(Hca(name=f"mlx5_{n}", ports=(port,)) for n in range(2))
    job = change.node(job, None, infiniband=Infiniband(hcas=hcas))
    job = change.asked(job, backend="mpi") if variables == "mpi" else change.environment(job, None, **variables)
    found = judge(job, "network.mtu").findings
    assert [(f.rule, f.severity, f.nodes) for f in found] == [("net-mtu-mismatch-ib", "error", ("node4",))] * bool(
        sizes
    )
    assert all(f"MTU of {sizes} bytes" in f.message for f in found)
