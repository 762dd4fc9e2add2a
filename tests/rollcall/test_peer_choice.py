"""The peer round at any size: every node is tried at least six times, and by few others beyond 64."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from distcheck.rollcall import peers
from distcheck.rollcall.path import TRANSFER_BYTES
from distcheck.rollcall.peers import choose
from distcheck.rollcall.protocol import PeerDoor

SIZES = [*range(7, 140), *(near + by for near in (256, 512, 1024, 4096) for by in (-1, 0, 1)), 12_500]


@pytest.mark.long
def test_every_node_is_tried_by_at_least_six_others_at_any_size_and_tries_few():
    for count in SIZES:
        doors = {f"node{n}": (PeerDoor(f"node{n}", "127.0.0.1", 1),) for n in range(count)}
        chosen = choose(doors)
        tried = Counter(door.uid for those in chosen.values() for door in those)
        assert min(tried[uid] for uid in doors) >= 6, count
        # As often as a node is tried it has another partner, and never itself.
        assert all(len({door.uid for door in those} - {uid}) == len(those) for uid, those in chosen.items()), count
        most = count - 1 if count <= 64 else 10
        assert max(map(len, chosen.values())) <= most, count


@pytest.mark.parametrize("bad", ["slow", "losing", "both"])
def test_a_bad_path_is_sent_at_most_seven_transfers(live, monkeypatch, bad):
    """Whatever the transfers show, they end; the clock stands still, so that no deadline ends them."""
    sent = []

    async def transfer(_door, _handshake, _seconds, singly=0):
        sent.append(singly or TRANSFER_BYTES)
        rate = 1e6 if bad in {"slow", "both"} else 1e12
        return peers.Transfer(
            bytes=TRANSFER_BYTES, seconds=TRANSFER_BYTES / rate, stalled=False, segments=1000,
            repeated=100 if bad in {"losing", "both"} else 0,
        )  # fmt: skip

    monkeypatch.setattr(peers, "transfer", transfer)

    async def main():
        door, said = PeerDoor("b", "127.0.0.1", 1), peers.peer_handshake("nonce", "b")
        until = asyncio.get_running_loop().time() + 600
        assert await peers._at_its_best(door, said, 3.0, until, TRANSFER_BYTES) is not None

    live(main())
    assert 2 <= len(sent) <= 7
    assert sum(sent) <= 7 * TRANSFER_BYTES
