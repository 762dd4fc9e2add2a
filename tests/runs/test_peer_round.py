"""The addresses of a process's endpoints, and who takes part in the peer round."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface, NetworkFacts, PeerTrial, Resolution, Transfer
from distcheck.rollcall.protocol import PeerReport
from distcheck.run import peer_round
from distcheck.run.peer_round import _representatives, addresses

ETH0 = "10.0.0.1"


def at(name, address, bits=24, *, up=True):
    return Interface(name=name, address=address, up=up, mtu_bytes=1500, prefix_bits=bits)


PLAIN = (at("lo", "127.0.0.1", 8), at("eth0", ETH0))


def run(interfaces=PLAIN, *, binds=ETH0, files=None, ranks=1, network=True, **environment):
    """Return what of a session counts here: the facts of its node and of its ranks."""
    own = Resolution(name="node1", addresses=(ETH0,), seconds=0.001)
    facts = NetworkFacts(links=(), own_name=own, own_name_binds=binds, nccl_files=files or {})
    node = SimpleNamespace(interfaces=interfaces, network=facts if network else None, key="node1")
    rank = SimpleNamespace(environment=environment)
    return SimpleNamespace(uid="leader", record=SimpleNamespace(node=node, process=None, ranks=(rank,) * ranks))


def test_one_address_for_all_uses_is_one_endpoint():
    assert addresses(run(), ETH0) == {ETH0: ("master", "nccl", "gloo")}


def test_each_library_has_an_endpoint_at_its_own_address():
    cards = (*PLAIN, at("eth1", "10.1.0.1"), at("ib0", "10.8.0.1"))
    found = addresses(run(cards, GLOO_SOCKET_IFNAME="eth1"), ETH0)
    assert found == {ETH0: ("master",), "10.8.0.1": ("nccl",), "10.1.0.1": ("gloo",)}
    assert next(iter(found)) == ETH0


def test_of_several_interfaces_the_first_counts():
    cards = (*PLAIN, at("eth1", "10.1.0.1"))
    found = addresses(run(cards, NCCL_SOCKET_IFNAME="=eth1,eth0", GLOO_SOCKET_IFNAME="eth1,eth0"), ETH0)
    assert found == {ETH0: ("master", "nccl"), "10.1.0.1": ("gloo",)}


def test_nccls_files_count_if_no_variable_is_set():
    cards = (*PLAIN, at("eth1", "10.1.0.1"))
    files = {"NCCL_SOCKET_IFNAME": "eth1"}
    assert addresses(run(cards, files=files), ETH0)["10.1.0.1"] == ("nccl",)
    assert "10.1.0.1" not in addresses(run(cards, files=files, NCCL_SOCKET_IFNAME="eth0"), ETH0)


@pytest.mark.parametrize("binds", ["127.0.1.1", "127.0.0.1", "::1", Missing(reason="[Errno -2] unknown")])
def test_a_loopback_that_gloo_selects_is_no_endpoint_for_peers(binds):
    assert addresses(run(binds=binds), ETH0) == {ETH0: ("master", "nccl")}


@pytest.mark.parametrize("address", ["fe80::1", "FE80::1"])
def test_an_address_that_needs_a_zone_cannot_be_tried(address):
    cards = (at("lo", "127.0.0.1", 8), at("eth0", address, 64), at("eth1", ETH0))
    assert addresses(run(cards, NCCL_SOCKET_IFNAME="eth0"), ETH0) == {ETH0: ("master", "gloo")}


def test_a_loopback_that_reached_rank_0_is_an_endpoint():
    only_here = (at("lo", "127.0.0.1", 8),)
    assert addresses(run(only_here, binds="127.0.0.1"), "127.0.0.1") == {"127.0.0.1": ("master", "nccl", "gloo")}


def test_a_wrong_choice_has_no_endpoint():
    found = addresses(run(NCCL_SOCKET_IFNAME="eth9", GLOO_SOCKET_IFNAME="eth9"), ETH0)
    assert found == {ETH0: ("master",)}


@pytest.mark.parametrize(
    "known",
    [{"network": False}, {"ranks": 0}, {"interfaces": Missing(reason="denied"), "binds": Missing(reason="denied")}],
    ids=str,
)
def test_without_facts_only_the_roll_calls_address_remains(known):
    assert addresses(run(**known), ETH0) == {ETH0: ("master",)}


def test_before_the_node_is_known_only_the_roll_calls_address_remains():
    session = run()
    session.record.node = None
    assert addresses(session, "::1") == {"::1": ("master",)}


# -- who takes part


def followers(**nodes):
    return {uid: SimpleNamespace(report=SimpleNamespace(process=SimpleNamespace(node=n))) for uid, n in nodes.items()}


def chosen(here, *, own=True):
    doors = ({"leader": ()} if own else {}) | dict.fromkeys(here, ())
    return _representatives(run(), here, doors)


def test_one_process_represents_each_node_and_the_leader_its_own():
    here = followers(a="node1", b="node2", c="node2", d="node3", e="node1")
    assert chosen(here) == ["leader", "b", "d"]


def test_a_leader_without_an_endpoint_is_represented_by_another_process_of_its_node():
    assert chosen(followers(a="node1", b="node2", c="node2"), own=False) == ["a", "b"]


@pytest.mark.parametrize("others", [1, 2, 7])
def test_on_one_node_two_processes_try_each_other(others):
    here = followers(**{f"p{n}": "node1" for n in range(others)})
    assert chosen(here) == ["leader", "p0"]
    assert chosen(here, own=False) == [f"p{n}" for n in range(min(others, 2))]


def test_a_process_without_an_endpoint_is_not_chosen():
    here = followers(a="node2", b="node2")
    assert _representatives(run(), here, {"leader": (), "b": ()}) == ["leader", "b"]


# -- what is sent once more


class Server:
    """A leader's server whose followers answer at once: data then takes these seconds, and of others they tell lies."""

    def __init__(self, trials, seconds):
        self.asked, self._trials, self._seconds, self._told = [], trials, seconds, {}
        self.followers = {uid: SimpleNamespace(say=lambda roster, uid=uid: self._say(uid, roster)) for uid in "abc"}

    def _say(self, uid, roster):
        assert roster.again
        targets = {door.uid for door in roster.doors}
        self.asked += [(uid, target) for target in targets]
        again = [t for t in self._trials if t.source == uid and t.target in targets]
        lies = [replace(t, transfer=sent(0.001)) for t in self._trials if t.source != uid]
        self._told[uid] = PeerReport((*(replace(t, transfer=sent(self._seconds)) for t in again), *lies))

    async def hear_all(self, kind, _seconds, uids):
        assert kind is PeerReport
        return {uid: self._told.pop(uid) for uid in uids if uid in self._told}


def sent(seconds):
    return Transfer(bytes=1 << 21, seconds=seconds, stalled=False)


def around(slow, seconds=0.5):
    """Return the trials between the leader and three followers; what `slow` sends and receives takes longer."""
    return tuple(
        PeerTrial(s, t, f"10.0.0.{t}", 5, "met", 0.01, transfer=sent(seconds if slow in (s, t) else 0.02))
        for s in ("leader", *"abc")
        for t in ("leader", *"abc")
        if s != t
    )


@pytest.mark.parametrize("again", [0.03, 0.4])
def test_a_slow_follower_is_tested_again_and_the_better_time_counts(again, monkeypatch):
    async def take_part(_run, roster, _seconds, _others):
        (door,) = roster.doors
        trial = next(t for t in trials if (t.source, t.target) == ("leader", door.uid))
        return PeerReport((replace(trial, transfer=sent(again)),))

    monkeypatch.setattr(peer_round, "take_part", take_part)
    trials = around("b")
    server = Server(trials, again)
    session = SimpleNamespace(uid="leader", remaining=lambda _reserve: 30.0)
    found = asyncio.run(peer_round._send_again(session, server, "nonce", trials))
    assert [(t.source, t.target) for t in found] == [(t.source, t.target) for t in trials]
    repeated = {(t.source, t.target): t.transfer.seconds for t in found if t.transfer.repeats}
    assert repeated == {("b", "leader"): again, ("leader", "b"): again}
    assert server.asked == [("b", "leader")], "the leader itself sends the rest"


@pytest.mark.parametrize(("slow", "left"), [("nobody", 30.0), ("b", 0.0)])
def test_nothing_is_repeated_if_none_is_slow_or_no_time_is_left(slow, left):
    trials = around(slow)
    server = Server(trials, 0.02)
    session = SimpleNamespace(uid="leader", remaining=lambda _reserve: left)
    assert asyncio.run(peer_round._send_again(session, server, "nonce", trials)) == trials
    assert server.asked == []
