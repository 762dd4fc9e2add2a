"""Name resolution: MASTER_ADDR, the nodes' addresses, and look-up times."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Interface, Resolution, ReverseLookup

LOOKS = ("environment", "meeting", "peers")
OURS = ("network.resolver",)


@pytest.fixture
def of(job_of, change):
    """Build a healthy job whose processes all looked up rank 0's address."""

    def of(nodes=4, per_node=1, **more):
        job = job_of(nodes, per_node, looks=LOOKS, **more)
        return change.process(job, None, reverse=(ReverseLookup("10.0.0.1", "node1", 0.001),))

    return of


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 2), (4, 8), (65, 2)])
@pytest.mark.parametrize("launcher", ["by hand", "slurm", "torchrun"])
def test_a_healthy_job_is_silent(of, judge, shape, launcher):
    assert judge(of(*shape, launcher=launcher), "network.resolver")[:2] == ((), ())


@pytest.mark.parametrize("unknown", [None, Missing(reason="[Errno -2] Name or service not known")])
def test_missing_resolutions_are_silent(of, rules, change, unknown):
    assert rules(change.process(of(), None, reverse=(), master_resolution=unknown)) == []


# -- net-reverse-dns-slow


@pytest.mark.parametrize(
    ("shape", "where", "looked_up", "ranks", "words"),
    [
        ((4, 8), 0, [("10.0.0.2", "node2", 0.2), ("10.0.0.3", "", 2.0)], (0,),
         "look-up of 10.0.0.3 took 2.0 s without an answer; rank 0 looks up each of its 32 connections, 64 s in all"),
        ((4, 1), 2, [("10.0.0.3", "node1", 0.5)], (2,),
         "rank 2 (node3 pid 102): the reverse look-up of 10.0.0.3 took 0.5 s"),
        ((65, 1), None, [("10.0.0.3", "", 2.0)], tuple(range(65)), ""),
    ],
)  # fmt: skip
def test_slow_reverse_look_ups_name_the_ranks_that_wait(of, change, only, shape, where, looked_up, ranks, words):
    slow = tuple(ReverseLookup(*each) for each in looked_up)
    finding, exit_code = only(change.process(of(*shape), where, reverse=slow))
    assert (finding.rule, finding.severity, finding.scope) == ("net-reverse-dns-slow", "warning", "system")
    assert (finding.ranks, finding.owner, exit_code) == (ranks, "admin", 0)
    assert finding.message.endswith(words)
    assert finding.fix.commands[0] == "time getent hosts 10.0.0.3"


def test_a_fast_answer_without_a_name_is_healthy(of, change, rules):
    assert rules(change.process(of(), None, reverse=(ReverseLookup("10.0.0.1", "", 0.05),))) == []
    assert rules(change.process(of(), None, reverse=())) == []


# -- net-dns-differs


def _answers(*addresses):
    return Resolution(name="trainer", addresses=addresses, seconds=0.001)


def _misdirected(change, job, where, *addresses, outcome="refused"):
    attempts = tuple(Attempt(a, 29500, "master", outcome) for a in addresses)
    answer = Resolution(name="node1", addresses=addresses, seconds=0.001)
    return change.process(job, where, master_resolution=answer, attempts=attempts)


def test_a_name_that_resolves_differently_on_one_node_names_its_ranks(of, change, only):
    finding, exit_code = only(_misdirected(change, of(4, 2), (4, 5), "10.0.0.9"))
    assert (finding.rule, finding.severity, finding.owner) == ("net-dns-differs", "error", "admin")
    assert (finding.ranks, finding.nodes, exit_code) == ((4, 5), ("node3",), 30)
    assert finding.message == "ranks 4-5 (node3): node1 resolves to 10.0.0.9; rank 0 is at 10.0.0.1 (node1)"
    assert finding.fix.commands == (
        "ssh node3 getent ahosts node1",
        "ssh node1 getent ahosts node1",
        "export MASTER_ADDR=10.0.0.1",
    )


def test_the_right_address_is_the_one_that_others_use(of, change, only):
    job = of(4)
    more = Interface(name="eth1", address="10.1.0.1", up=True, mtu_bytes=1500)
    job = change.node(job, 0, interfaces=(more, *job.nodes[0].interfaces))
    job = change.process(job, 0, master_resolution=_answers("127.0.1.1"))  # what node1 resolves its own name to
    finding, _ = only(_misdirected(change, job, 2, "10.0.0.9"))
    assert "rank 0 is at 10.0.0.1 (node1)" in finding.message


@pytest.fixture
def said(judge):
    """Return the rules of the findings in the report of a rank that met no other."""
    return lambda job: [f.rule for f in judge(job, "network.resolver", "network.master_reachability").findings]


def test_another_address_of_rank_0_reported_by_others_shows_a_wrong_name(of, change, only, said):
    job = change.job(change.keep(_misdirected(change, of(4, 2), (4, 5), "10.0.0.9"), 4, 5), met=False)
    assert said(job) == ["net-master-refused"]
    told = Attempt("10.0.0.2", 21000, "side", "elsewhere", detail="10.0.0.1")
    job = change.process(job, None, attempts=(*job.processes[0].attempts, told))
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("net-dns-differs", (4, 5), ("node3",), 30)
    assert "node1 resolves to 10.0.0.9; rank 0 is at 10.0.0.1, where other ranks reached it" in finding.message
    assert said(job) == ["net-dns-differs"]
    assert said(change.process(job, None, master_resolution=_answers("10.0.0.1"))) == ["net-master-refused"]


def test_a_rank_without_an_answer_is_unreachable_and_not_misdirected(of, change, said):
    job = _misdirected(change, of(4, 2), (4, 5), "10.0.0.9", outcome="timeout")
    told = Attempt("10.0.0.2", 21000, "side", "elsewhere", detail="10.0.0.1")
    job = change.process(job, (4, 5), attempts=(*job.processes[4].attempts, told))
    assert said(change.job(change.keep(job, 4, 5), met=False)) == ["net-master-unreachable"]


def test_different_wrong_hosts_are_separate_findings(of, change, judge):
    job = _misdirected(change, _misdirected(change, of(4), 1, "10.0.0.8"), 3, "10.0.0.9")
    assert [(f.rule, f.ranks) for f in judge(job, "network.resolver").findings] == [
        ("net-dns-differs", (1,)),
        ("net-dns-differs", (3,)),
    ]


def test_a_name_that_resolves_to_another_address_of_rank_0_is_healthy(of, change, rules):
    job = of(2)
    more = Interface(name="eth1", address="192.168.0.1", up=True, mtu_bytes=1500)
    job = change.node(job, 0, interfaces=(*job.nodes[0].interfaces, more))
    assert rules(_misdirected(change, job, 1, "192.168.0.1")) == []
    assert rules(_misdirected(change, job, 1, "10.0.0.9", "10.0.0.1")) == []


def test_an_address_at_which_rank_0_was_reached_is_correct(of, change, rules):
    """This happens behind a NAT."""
    assert rules(_misdirected(change, of(), 2, "203.0.113.5", outcome="met")) == []
