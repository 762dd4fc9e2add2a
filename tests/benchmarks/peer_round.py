"""The peer round of a job of many nodes: ``python tests/benchmarks/peer_round.py NODES`` prints its costs as JSON.

One node is real: it tests the endpoints that the leader chose for it, over loopback. The leader's part is done for all
nodes: choosing, a roster for each, reading all reports, looking for transfers to repeat. What the nodes do at the same
time on machines of their own is not added up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import msgspec
from msgspec.structs import replace

from distcheck.facts.network import PeerTrial
from distcheck.rollcall import doors
from distcheck.rollcall.doors import PeerListener
from distcheck.rollcall.framing import encode
from distcheck.rollcall.peers import choose, doubtful, try_peers
from distcheck.rollcall.protocol import PeerDoor, PeerReport, Roster

SECONDS = 3.0
"""The default of --connect-timeout."""
NONCE = "0" * 16


def doors_of(nodes: int) -> dict[str, tuple[PeerDoor, ...]]:
    """Return an endpoint of each simulated node; nobody listens there."""
    return {f"node{n}": (PeerDoor(f"node{n}", "127.0.0.1", 1 + n % 65_535),) for n in range(nodes)}


async def one_node(nodes: int) -> tuple[float, int, tuple[PeerTrial, ...]]:
    """Return how long the first node's tests take, the bytes that arrived, and the results."""
    arrived: list[int] = []
    read_all = doors._swallow

    async def counted(reader: asyncio.StreamReader) -> int:
        arrived.append(await read_all(reader))
        return arrived[-1]

    doors._swallow = counted
    listeners: dict[str, PeerListener] = {}
    for door in choose(doors_of(nodes))["node0"]:
        listeners[door.uid] = PeerListener(door.uid)
        await listeners[door.uid].open({"127.0.0.1": ("master",)})
        listeners[door.uid].expect(NONCE)
    roster = Roster(NONCE, tuple(door for listener in listeners.values() for door in listener.doors), SECONDS)
    start = time.perf_counter()
    trials = await try_peers("node0", roster, {"127.0.0.1": 1500})
    seconds = time.perf_counter() - start
    for listener in listeners.values():
        await listener.close()
    if not all(t.outcome == "met" and t.transfer and not t.transfer.stalled for t in trials):
        raise SystemExit(f"an endpoint was not reached: {trials}")
    return seconds, sum(arrived), trials


def leader(nodes: int, trials: tuple[PeerTrial, ...]) -> tuple[float, int, int]:
    """Return the CPU seconds of the leader's part, the fewest tests of any node, and the bytes of a report."""
    everybody = doors_of(nodes)
    decode = msgspec.msgpack.Decoder(PeerReport).decode
    start = time.process_time()
    chosen = choose(everybody)
    rosters = [encode(Roster(NONCE, those, SECONDS)) for those in chosen.values()]
    took = time.process_time() - start
    tested = dict.fromkeys(everybody, 0)
    reports = []
    for uid, those in chosen.items():
        for door in those:
            tested[door.uid] += 1
        said = tuple(replace(t, source=uid, target=d.uid) for t, d in zip(trials, those, strict=True))
        reports.append(msgspec.msgpack.encode(PeerReport(said)))
    start = time.process_time()
    doubtful([trial for report in reports for trial in decode(report).trials])
    took += time.process_time() - start
    return took, min(tested.values()), max(map(len, reports)) + max(map(len, rosters))


def main() -> None:
    nodes = int(sys.argv[1])
    seconds, sent, trials = asyncio.run(one_node(nodes))
    took, fewest, size = leader(nodes, trials)
    costs = {"seconds": seconds, "bytes": sent, "leader_cpu_seconds": took, "leader_bytes": size}
    print(json.dumps({"nodes": nodes, "endpoints": len(trials), "fewest_tests": fewest, **costs}))


if __name__ == "__main__":
    main()
