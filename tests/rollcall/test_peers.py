"""The peer round: who tries whom, and what each door says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from distcheck.facts import Transfer
from distcheck.rollcall import peers, seal
from distcheck.rollcall.doors import PeerListener, words
from distcheck.rollcall.peers import choose, try_peers
from distcheck.rollcall.protocol import PeerDoor, Roster


def _doors(count: int, each: int = 1) -> dict[str, list[PeerDoor]]:
    return {f"p{n}": [PeerDoor(f"p{n}", f"127.0.{door}.1", 1 + n) for door in range(each)] for n in range(count)}


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_up_to_64_everybody_tries_all_doors_of_everybody_else(count, each):
    doors = _doors(count, each)
    chosen = choose(doors)
    assert {uid: sorted(tried, key=str) for uid, tried in chosen.items()} == {
        uid: sorted((d for other in doors if other != uid for d in doors[other]), key=str) for uid in doors
    }


def test_nobody_is_everybodys_first():
    assert len({tried[0].uid for tried in choose(_doors(64)).values()}) == 64


@pytest.mark.parametrize("count", [65, 100, 128, 1024, 8192])
def test_beyond_64_everybody_is_tried_often_enough_and_as_often_as_it_tries(count):
    chosen = choose(_doors(count))
    tried = Counter(d.uid for doors in chosen.values() for d in doors)
    tries = {uid: len({d.uid for d in doors} - {uid}) for uid, doors in chosen.items()}
    assert tried == tries
    assert min(tries.values()) >= 6
    assert max(tries.values()) <= 13


async def _listener(uid: str, *addresses: str, nonce: str | None = "nonce") -> PeerListener:
    listener = PeerListener(uid)
    await listener.open(dict.fromkeys(addresses or ("127.0.0.1",), ("master",)))
    if nonce is not None:
        listener.expect(nonce)
    return listener


def test_two_processes_find_each_other_on_every_kind_of_address(live):
    async def main():
        listener = await _listener("b", "127.0.0.1", "::1")
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0), {"127.0.0.1": 1400})
        assert [(t.source, t.target, t.address, t.outcome) for t in trials] == [
            ("a", "b", "127.0.0.1", "met"),
            ("a", "b", "::1", "met"),
        ]
        assert [t.datagrams for t in trials] == [{256: True, 1400: True}, {256: True, 1500: True}]
        assert [t.transfer.bytes for t in trials] == [1 << 21, 1 << 21]
        assert not any(t.transfer.stalled for t in trials)
        await listener.close()

    live(main())


def test_with_a_token_two_processes_find_each_other_and_nobody_else(live):
    secret, other = seal.secret_of("distcheck-" + 32 * "0"), seal.secret_of("distcheck-" + 32 * "1")

    async def main():
        listener = PeerListener("b", secret)
        await listener.open({"127.0.0.1": ("master",)})
        listener.expect("nonce")
        (trial,) = await try_peers("a", Roster("nonce", listener.doors, 3.0), secret=secret)
        assert (trial.outcome, trial.datagrams) == ("met", {256: True, 1500: True})
        assert trial.transfer.bytes == 1 << 21
        (trial,) = await try_peers("a", Roster("nonce", listener.doors, 3.0), secret=other)
        assert (trial.outcome, trial.transfer) == ("foreign", None)
        await listener.close()
        pretender = await _listener("b")  # it knows the round's nonce, and not the token
        (trial,) = await try_peers("a", Roster("nonce", pretender.doors, 0.5), secret=secret)
        assert (trial.outcome, trial.transfer) == ("timeout", None)
        await pretender.close()

    live(main())


def test_the_uses_of_a_door_are_those_of_its_trial(live):
    async def main():
        listener = PeerListener("b")
        await listener.open({"127.0.0.1": ("master", "nccl"), "127.0.0.2": ("gloo",)})
        listener.expect("nonce")
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0))
        assert [(t.uses, t.port) for t in trials] == [(d.uses, d.port) for d in listener.doors]
        assert [t.uses for t in trials] == [("master", "nccl"), ("gloo",)]
        await listener.close()

    live(main())


def test_whoever_knocks_before_the_roster_is_there_waits_for_it(live):
    async def main():
        listener = await _listener("b", nonce=None)
        trying = asyncio.ensure_future(try_peers("a", Roster("nonce", listener.doors, 5.0)))
        await asyncio.sleep(0.2)
        assert not trying.done()
        listener.expect("nonce")
        assert [t.outcome for t in await trying] == ["met"]
        await listener.close()

    live(main())


def test_a_shut_a_foreign_a_silent_and_an_impossible_door_are_told_apart(live, closed_port):
    async def main():
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
            "silent": "timeout",
            "named": "failed",
        }
        assert trials["foreign"].detail.startswith("220 mail.example")
        assert trials["silent"].seconds < 2
        assert [(t.transfer, t.datagrams) for t in trials.values()] == [(None, {})] * 4
        foreign.close()
        silent.close()

    live(main())


def test_a_door_of_another_process_or_of_another_roster_is_foreign(live):
    """Two nodes that have the same address."""

    async def main():
        listener = await _listener("c")
        (door,) = listener.doors
        doors = (PeerDoor("b", "127.0.0.1", door.port), door)
        trials = await try_peers("a", Roster("nonce", doors, 3.0))
        assert [(t.target, t.outcome) for t in trials] == [("b", "foreign"), ("c", "met")]
        assert trials[0].detail == "nonce c"
        assert (trials[0].transfer, trials[0].datagrams) == (None, {})
        stale = await try_peers("a", Roster("other", (door,), 3.0))
        assert [t.outcome for t in stale] == ["foreign"]
        await listener.close()

    live(main())


def test_hundreds_of_doors_are_tried_in_moments(live, monkeypatch):
    async def nothing(*_arguments):
        return None

    monkeypatch.setattr(peers, "transfer", nothing)

    async def main():
        listener = await _listener("b")
        trials = await try_peers("a", Roster("nonce", listener.doors * 300, 9.0))
        assert Counter(t.outcome for t in trials) == {"met": 300}
        await listener.close()

    live(main())


def test_every_open_door_has_its_turn_though_transfers_to_others_stand_still(live, monkeypatch):
    turns: list[str] = []
    good = Transfer(bytes=1 << 21, seconds=0.001, stalled=False)

    async def transfer(door, word, _seconds):
        turns.append(door.address)
        assert word == words("nonce", "b")
        if door.address.endswith(".1"):
            await asyncio.sleep(0.7)
            return None
        return good

    monkeypatch.setattr(peers, "transfer", transfer)

    async def main():
        addresses = [f"127.0.0.{n}" for n in range(1, 5)]
        listener = await _listener("b", *addresses)
        trials = await try_peers("a", Roster("nonce", listener.doors, 3.0))
        assert turns == addresses
        assert [t.transfer for t in trials] == [None, good, good, good]
        await listener.close()

    live(main())


def test_what_was_repeated_is_sent_again_because_once_is_no_proof(live, monkeypatch):
    async def main():
        repeated = iter([60, 0, 0, 60, 60, 60])

        async def sent(_door, _word, _limit):
            return Transfer(bytes=1 << 21, seconds=0.001, stalled=False, segments=1000, repeated=next(repeated))

        monkeypatch.setattr(peers, "transfer", sent)
        door, now = PeerDoor("b", "127.0.0.1", 1), asyncio.get_running_loop().time()
        late = await peers._at_its_best(door, b"word", 3.0, now + 60)
        assert (late.segments, late.repeated) == (3000, 60)
        lossy = await peers._at_its_best(door, b"word", 3.0, now + 60)
        assert (lossy.segments, lossy.repeated) == (3000, 180)

    live(main())


def test_what_goes_slowly_is_sent_again_and_the_best_counts_with_all_that_was_repeated(live, monkeypatch):
    async def main():
        seconds = iter([1.0, 0.5, 0.25, 0.001, 1.0])

        async def sent(_door, _word, _limit):
            return Transfer(bytes=1 << 21, seconds=next(seconds), stalled=False, segments=100, repeated=1)

        monkeypatch.setattr(peers, "transfer", sent)
        door, now = PeerDoor("b", "127.0.0.1", 1), asyncio.get_running_loop().time()
        best = await peers._at_its_best(door, b"word", 3.0, now + 60)
        assert (best.seconds, best.segments, best.repeated) == (0.25, 300, 3)
        assert (await peers._at_its_best(door, b"word", 3.0, now + 60)).segments == 100
        assert (await peers._at_its_best(door, b"word", 3.0, now)).segments == 100, "its time is over"

    live(main())
