"""The peer round: who tries whom, and what each door says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from distcheck.rollcall.peers import PeerListener, choose, try_peers
from distcheck.rollcall.protocol import PeerDoor, Roster


def _doors(count: int) -> list[PeerDoor]:
    return [PeerDoor(f"p{n}", "127.0.0.1", 1 + n) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_up_to_64_everybody_tries_everybody_else(count):
    chosen = choose(_doors(count))
    assert {uid: {d.uid for d in doors} for uid, doors in chosen.items()} == {
        f"p{n}": {f"p{m}" for m in range(count)} - {f"p{n}"} for n in range(count)
    }


@pytest.mark.parametrize("count", [65, 100, 128, 1024, 8192])
def test_beyond_64_everybody_is_tried_often_enough_and_as_often_as_it_tries(count):
    chosen = choose(_doors(count))
    tried = Counter(d.uid for doors in chosen.values() for d in doors)
    tries = {uid: len({d.uid for d in doors} - {uid}) for uid, doors in chosen.items()}
    assert tried == tries
    assert min(tries.values()) >= 6
    assert max(tries.values()) <= 13


def test_two_processes_find_each_other_on_every_kind_of_address(live):
    async def main():
        for address in ("127.0.0.1", "::1"):
            listener = PeerListener()
            await listener.open(address)
            listener.expect("nonce")
            roster = Roster("nonce", (PeerDoor("b", address, listener.port),), 2.0)
            (trial,) = await try_peers("a", roster)
            assert (trial.source, trial.target, trial.outcome) == ("a", "b", "met")
            await listener.close()

    live(main())


def test_whoever_knocks_before_the_roster_is_there_waits_for_it(live):
    async def main():
        listener = PeerListener()
        await listener.open("127.0.0.1")
        roster = Roster("nonce", (PeerDoor("b", "127.0.0.1", listener.port),), 2.0)
        trying = asyncio.ensure_future(try_peers("a", roster))
        await asyncio.sleep(0.2)
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
        foreign.close()
        silent.close()

    live(main())


def test_hundreds_of_doors_are_tried_in_moments(live):
    async def main():
        listener = PeerListener()
        await listener.open("127.0.0.1")
        listener.expect("nonce")
        doors = tuple(PeerDoor(f"p{n}", "127.0.0.1", listener.port) for n in range(300))
        trials = await try_peers("a", Roster("nonce", doors, 3.0))
        assert Counter(t.outcome for t in trials) == {"met": 300}
        await listener.close()

    live(main())
