"""The peer round: which process tests which, and how each endpoint answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from msgspec.structs import replace
from rollcall.conftest import endpoints

from distcheck.facts.network import PeerTrial, Transfer
from distcheck.rollcall import peers, seal
from distcheck.rollcall.peers import better_of, choose, doubtful, send_again, try_peers
from distcheck.rollcall.protocol import PeerDoor, Roster


def _doors(count: int, each: int = 1) -> dict[str, list[PeerDoor]]:
    return {f"p{n}": [PeerDoor(f"p{n}", f"127.0.{door}.1", 1 + n) for door in range(each)] for n in range(count)}


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_up_to_64_processes_test_all_endpoints_of_all_others(count, each):
    doors = _doors(count, each)
    chosen = choose(doors)
    assert {uid: sorted(tried, key=str) for uid, tried in chosen.items()} == {
        uid: sorted((d for other in doors if other != uid for d in doors[other]), key=str) for uid in doors
    }


def test_no_process_is_the_first_target_of_all():
    assert len({tried[0].uid for tried in choose(_doors(64)).values()}) == 64


@pytest.mark.long
def test_beyond_64_each_process_tests_few_others_and_is_tested_as_often_at_least_six_times():
    for count in (*range(65, 140), *(near + by for near in (256, 1024, 4096) for by in (-1, 0, 1)), 12_500):
        chosen = choose(_doors(count))
        tried = Counter(d.uid for doors in chosen.values() for d in doors)
        tries = {uid: len({d.uid for d in doors} - {uid}) for uid, doors in chosen.items()}
        assert tried == tries, count
        assert 6 <= min(tries.values()) <= max(tries.values()) <= 10, count


async def test_two_processes_find_each_other_on_every_kind_of_address():
    async with endpoints("127.0.0.1", "::1") as listener:
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0), {"127.0.0.1": 1400})
        assert [(t.source, t.target, t.address, t.outcome) for t in trials] == [
            ("a", "b", "127.0.0.1", "met"),
            ("a", "b", "::1", "met"),
        ]
        assert [t.datagrams for t in trials] == [{256: True, 1400: True}, {256: True, 1500: True}]
        assert [t.transfer.bytes for t in trials] == [1 << 21, 1 << 21]
        assert not any(t.transfer.stalled for t in trials)
        assert all(0 < t.round_trip_seconds < 1 for t in trials)


async def test_with_a_token_only_processes_of_the_job_find_each_other():
    secret, other = seal.secret_of("distcheck-" + 32 * "0"), seal.secret_of("distcheck-" + 32 * "1")

    async with endpoints(secret=secret) as listener:
        (trial,) = await try_peers("a", Roster("nonce", listener.doors, 3.0), secret=secret)
        assert (trial.outcome, trial.datagrams) == ("met", {256: True, 1500: True})
        assert trial.transfer.bytes == 1 << 21
        (trial,) = await try_peers("a", Roster("nonce", listener.doors, 3.0), secret=other)
        assert (trial.outcome, trial.transfer) == ("foreign", None)
    async with endpoints() as pretender:  # it knows the round's nonce, and not the token
        (trial,) = await try_peers("a", Roster("nonce", pretender.doors, 0.5), secret=secret)
        assert (trial.outcome, trial.transfer) == ("foreign", None)


async def test_a_trial_has_the_uses_of_its_endpoint():
    async with endpoints("127.0.0.1", "127.0.0.2", uses=("master", "nccl")) as listener:
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0))
        assert [(t.uses, t.port) for t in trials] == [(("master", "nccl"), d.port) for d in listener.doors]


async def test_a_peer_that_connects_before_the_roster_waits_for_it():
    async with endpoints(nonce="") as listener:
        trying = asyncio.ensure_future(try_peers("a", Roster("nonce", listener.doors, 5.0)))
        await asyncio.sleep(0.2)
        assert not trying.done()
        listener.expect("nonce")
        assert [t.outcome for t in await trying] == ["met"]


async def test_closed_foreign_silent_and_invalid_endpoints_are_distinguished(closed_port):
    async def greet(_reader, writer):
        writer.write(b"220 mail.example ESMTP ready\r\n")
        writer.close()

    async def hush(reader, writer):
        await reader.read()
        writer.close()

    foreign = await asyncio.start_server(greet, "127.0.0.1", 0)
    silent = await asyncio.start_server(hush, "127.0.0.1", 0)
    ports = [s.sockets[0].getsockname()[1] for s in (foreign, silent)]
    doors = (
        PeerDoor("shut", "127.0.0.1", closed_port),
        PeerDoor("foreign", "127.0.0.1", ports[0]),
        PeerDoor("silent", "127.0.0.1", ports[1]),
        PeerDoor("named", "node1.invalid", 5),
    )
    trials = {t.target: t for t in await try_peers("a", Roster("0" * 16, doors, 9.0), seconds=0.5)}
    assert {name: t.outcome for name, t in trials.items()} == {
        "shut": "refused",
        "foreign": "foreign",
        "silent": "silent",
        "named": "failed",
    }
    assert trials["foreign"].detail.startswith("220 mail.example")
    assert trials["silent"].seconds < 2
    assert [(t.transfer, t.datagrams) for t in trials.values()] == [(None, {})] * 4
    foreign.close()
    silent.close()


async def test_a_process_that_was_suspended_meanwhile_tries_again():
    """A missing answer proves nothing if nobody looked."""
    async with endpoints(nonce="") as listener:
        trying = asyncio.ensure_future(try_peers("a", Roster("nonce", listener.doors, 0.2)))
        await asyncio.sleep(0.05)
        time.sleep(1.0)  # noqa: ASYNC251 the whole process stands still
        listener.expect("nonce")
        assert [t.outcome for t in await trying] == ["met"]


async def test_an_endpoint_of_another_process_or_roster_is_foreign():
    """Two nodes that have the same address."""

    async with endpoints(uid="c") as listener:
        (door,) = listener.doors
        doors = (PeerDoor("b", "127.0.0.1", door.port), door)
        trials = await try_peers("a", Roster("nonce", doors, 3.0))
        assert [(t.target, t.outcome) for t in trials] == [("b", "foreign"), ("c", "met")]
        assert trials[0].detail.endswith(" c")
        assert (trials[0].transfer, trials[0].datagrams) == (None, {})
        stale = await try_peers("a", Roster("other", (door,), 3.0))
        assert [t.outcome for t in stale] == ["foreign"]


async def test_hundreds_of_endpoints_are_tested_quickly(monkeypatch):
    async def nothing(*_arguments):
        return None

    monkeypatch.setattr(peers, "transfer", nothing)

    async with endpoints() as listener:
        trials = await try_peers("a", Roster("nonce", listener.doors * 300, 9.0))
        assert Counter(t.outcome for t in trials) == {"met": 300}


async def test_every_open_endpoint_gets_its_transfer_though_others_stall(monkeypatch):
    turns: list[str] = []
    good = Transfer(bytes=1 << 21, seconds=0.001, stalled=False)

    async def transfer(door, word, _seconds, _singly=0):
        turns.append(door.address)
        assert word.answer.endswith(b" b\n")
        if door.address.endswith(".1"):
            await asyncio.sleep(0.7)
            return None
        return good

    monkeypatch.setattr(peers, "transfer", transfer)

    addresses = [f"127.0.0.{n}" for n in range(1, 5)]
    async with endpoints(*addresses) as listener:
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0))
        assert list(dict.fromkeys(turns)) == addresses
        assert [t.transfer for t in trials] == [None, good, good, good]


_SLOW = ((0.5, 0), (0.2, 1), (0.3, 0), (0.9, 1))


@pytest.mark.parametrize(
    ("left", "singly", "transfers", "expected"),
    [
        (60, 0, [(0.01, 0)], ([0], 0.01, 1000, 0)),
        (60, 500, [(0.01, 0), (0.001, 2)], ([0, 500], 0.01, 2000, 2)),  # packets tell no speed
        (60, 500, _SLOW, ([0, 0, 0, 500], 0.2, 4000, 2)),
        (0, 0, _SLOW, ([0], 0.5, 1000, 0)),
        (60, 500, [(0.01, 0), (0.02, 20), *[(0.02, 0)] * 4], ([0, *[500] * 5], 0.01, 4000, 0)),  # once is no proof
        (60, 500, [(0.01, 20), *[(0.02, 20)] * 5], ([0, *[500] * 5], 0.01, 5000, 100)),
        (60, 500, [(0.5, 100)] * 9, ([0, 0, 0, 500, 500, 500], 0.5, 5000, 500)),
        (0, 0, [(0.01, 60), *[(0.01, 0)] * 5], ([0] * 6, 0.01, 5000, 0)),  # a moment later it is no less in doubt
        (-60, 0, [(0.01, 60)], ([0], 0.01, 1000, 60)),
        (60, 0, [(0.01, 3)], ([0], 0.01, 1000, 3)),
    ],
)
async def test_what_is_slow_or_lost_is_sent_again_and_some_packet_by_packet(
    monkeypatch, left, singly, transfers, expected
):
    sizes, made = [], iter(transfers)

    async def sent(_door, _word, _limit, size=0):
        sizes.append(size)
        seconds, repeated = next(made)
        return Transfer(bytes=1 << 21, seconds=seconds, stalled=False, segments=1000, repeated=repeated)

    monkeypatch.setattr(peers, "transfer", sent)
    until = asyncio.get_running_loop().time() + left
    best = await peers._at_its_best(PeerDoor("b", "127.0.0.1", 1), b"word", 3.0, until, singly)
    assert (sizes, best.seconds, best.segments, best.repeated) == expected


@pytest.mark.parametrize(("count", "each"), [(1, 1 << 21), (3, 1 << 21), (12, 1 << 19), (63, 99864)])
async def test_a_nodes_number_of_single_packets_does_not_depend_on_its_endpoints(monkeypatch, count, each):
    told = []

    async def best(door, _said, _seconds, _until, singly):
        told.append(singly)

    monkeypatch.setattr(peers, "_at_its_best", best)

    doors = tuple(PeerDoor("b", "127.0.0.1", n) for n in range(count))
    met = [PeerTrial("a", d.uid, d.address, d.port, "met", 0.01) for d in doors]
    await peers._transfer(Roster("nonce", doors, 3.0), met, 3.0, None)
    assert told == [each] * count


# -- once more


def _trials(count, seconds, **fields):
    """Return the trials of processes that all try each other; `seconds` of a way is how long its transfer took."""
    return [
        PeerTrial(
            source=f"p{s}", target=f"p{t}", address=f"10.0.0.{t}", port=5, outcome="met", seconds=0.01,
            transfer=Transfer(bytes=1 << 21, seconds=seconds(s, t), stalled=False, **fields),
        )
        for s in range(count)
        for t in range(count)
        if s != t
    ]  # fmt: skip


def _ways(turns):
    return [{(t.source, t.target) for t in turn} for turn in turns]


def test_where_all_goes_about_as_fast_nothing_is_sent_again():
    assert doubtful(_trials(4, lambda s, t: 0.012 + 0.002 * ((7 * s + t) % 5))) == []
    assert doubtful([]) == []
    assert doubtful(_trials(4, lambda s, t: 0.2 if (s, t) == (1, 2) else 0.02)) == [], "both have faster ways"


def test_where_all_are_slower_than_any_link_the_fastest_ways_are_sent_again():
    assert {way for turn in _ways(doubtful(_trials(2, lambda _s, _t: 0.18))) for way in turn} == {
        ("p0", "p1"),
        ("p1", "p0"),
    }


def test_of_a_slow_process_the_fastest_way_of_each_direction_is_sent_again_one_after_the_other():
    turns = doubtful(_trials(4, lambda s, t: 0.02 if 1 not in (s, t) else 0.15 if 3 in (s, t) else 0.2))
    assert sorted(map(sorted, _ways(turns))) == [[("p1", "p3")], [("p3", "p1")]]
    assert _ways(doubtful(_trials(4, lambda s, _t: 0.15 if s == 1 else 0.02))) == [{("p1", "p0")}]


def test_slow_processes_are_tested_in_parallel_and_none_twice_at_once():
    turns = doubtful(_trials(12, lambda s, t: 0.2 + 0.01 * ((s + t) % 11) if {s, t} & {1, 4, 7} else 0.02))
    for turn in turns:
        ends = [end for t in turn for end in (t.source, t.target)]
        assert len(set(ends)) == len(ends)
    assert {s for turn in _ways(turns) for s, _ in turn} >= {"p1", "p4", "p7"}
    assert len(turns) < 6


def test_what_a_long_round_trip_or_a_halt_explains_is_not_sent_again():
    far = [
        replace(t, transfer=replace(t.transfer, round_trip_seconds=0.3 if "p1" in (t.source, t.target) else 1e-5))
        for t in _trials(4, lambda s, t: 2.0 if 1 in (s, t) else 0.02)
    ]
    assert doubtful(far) == []
    halted = [replace(t, transfer=replace(t.transfer, stalled=t.source == "p1")) for t in far]
    assert doubtful(halted) == []


def test_the_better_of_both_counts_with_all_that_was_repeated():
    first, second = (_trials(2, lambda _s, _t, took=took: took, segments=100, repeated=1)[0] for took in (0.2, 0.02))
    for one, other in ((first, second), (second, first)):
        sent = better_of(one, other).transfer
        assert (sent.seconds, sent.segments, sent.repeated, sent.repeats) == (0.02, 200, 2, True)
    assert better_of(first, None) == first
    halted = replace(second, transfer=replace(second.transfer, stalled=True))
    assert better_of(first, halted) == first
    assert not first.transfer.repeats


async def test_transfers_are_repeated_only_to_open_endpoints(closed_port):
    async with endpoints() as listener:
        gone = PeerDoor("c", "127.0.0.1", closed_port)
        trials = await send_again("a", Roster("nonce", (*listener.doors, gone), 1.0, again=True))
        assert [(t.source, t.target, t.address, t.transfer.bytes) for t in trials] == [("a", "b", "127.0.0.1", 1 << 21)]
        assert 0 < trials[0].round_trip_seconds < 1
