"""What the tests of every launcher ask of a run that was started inside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from hang.expected import PROGRAM
from real.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cluster.cluster import Cluster
    from real.ended import Ended

JOB = str(Path(__file__).parent / "all_reduce.py")
PLAIN_JOB = str(Path(__file__).parent / "plain_sum.py")
"""For launches that differ from one with JOB only in what the ranks are given: eight imports of torch less."""
GATE = ("gate", "--sizes", "1M:1M", "--op", "all_reduce", "--join-timeout", "30", "--format", "json")
LOOKED_AT = ("bash", "-c", 'distcheck env --format json && exec "$@"', "bash", sys.executable, PLAIN_JOB)
"""A look and then a job, without torch."""
PATIENCE = 240
"""Seconds that a run with its job may take: eight imports of torch on a machine that others use as well."""
MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
NODES = ("node1", "node2", "node3", "node4")


def mapped(prefix: str, names: str, *command: str) -> tuple[str, ...]:
    """Return a command that gets RANK, WORLD_SIZE and LOCAL_RANK from these of a launcher's variables."""
    rank, world, local = (f"${prefix}{name}" for name in names.split())
    script = f'export RANK={rank} WORLD_SIZE={world} LOCAL_RANK={local}; exec "$@"'
    return ("bash", "-c", script, "bash", *command)


Start = tuple[str, tuple[str, ...], dict[str, str]]
"""A node, a command to which a program is added, and its variables."""


@contextlib.contextmanager
def running(cluster: Cluster, name: str, starts: Iterable[Start]) -> Iterator[None]:
    """Run a job of tests/hang with 4 ranks until all are at the line of its fault; it is gone afterwards."""
    folder = cluster.shared / name
    folder.mkdir()
    program, env = (str(PROGRAM), name, f"/shared/{name}"), {**MASTER, "OMP_NUM_THREADS": "1"}
    started = [cluster.start(node, *words, *program, env={**env, **more}) for node, words, more in starts]
    try:
        until(lambda: len(list(folder.glob("ready.?"))) == 4, PATIENCE)
        yield
    finally:
        for each in started:
            each.interrupt(SIGTERM)  # torchrun and srun then end the ranks, which hold their pipes
        for pipe in folder.glob("shard.*"):
            with contextlib.suppress(OSError):  # nothing reads it
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # data-loader workers go on, and end
        for each in started:
            each.wait(PATIENCE)


def two_each(*nodes: str) -> list[Start]:
    """Return how ranks 0 to 3 are started by hand on two nodes."""
    shared = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": nodes[0]}
    places = [{"RANK": str(n), "LOCAL_RANK": str(n % 2), **shared} for n in range(4)]
    return [(nodes[n // 2], (sys.executable,), place) for n, place in enumerate(places)]


def reports(*ended: Ended) -> list[dict[str, Any]]:
    """Return every report that was printed; with COMMAND it goes to standard error."""
    lines = [line for e in ended for line in (e.out + e.err).splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"schema"')]


def judged(
    cluster: Cluster, *words: str, at: str = "head", timeout: float = 150, **environment: str
) -> tuple[Ended, dict[str, Any]]:
    """Run distcheck on a machine of the cluster; return how it ended and its one report."""
    ended = cluster.run(at, "distcheck", *words, "--format", "json", env=environment, timeout=timeout)
    (report,) = reports(ended)
    return ended, report


def findings(report: dict[str, Any], *severities: str) -> list[str]:
    return [f["rule"] for f in report["findings"] if f["severity"] in (severities or ("error", "warning"))]


def finding(report: dict[str, Any], rule: str) -> dict[str, Any]:
    (found,) = [f for f in report["findings"] if f["rule"] == rule]
    return found


def placed(report: dict[str, Any]) -> list[tuple[int, str, int]]:
    """Return rank, node and local rank of every rank, in order."""
    return sorted((row["rank"], row["node"], row["local_rank"]) for row in report["ranks"])


def blocks(*here: int) -> list[tuple[int, str, int]]:
    """Return where ranks lie when node1 has the first, node2 the next, and so on."""
    places = [(node, local) for node, count in zip(NODES, here, strict=False) for local in range(count)]
    return [(rank, node, local) for rank, (node, local) in enumerate(places)]


def summed(*ended: Ended) -> list[str]:
    """Return what the job said that ran right after distcheck, rank by rank."""
    said = [words for e in ended for words in re.findall(r"rank \d+ of \d+ summed up \d+", e.out)]
    return sorted(said, key=lambda words: int(words.split()[1]))


def assert_healthy(ended: Iterable[Ended], layout: list[tuple[int, str, int]], launcher: str) -> dict[str, Any]:
    """Assert that all ended well with one report, with every rank at its place, and that the job ran afterwards."""
    ended = list(ended)
    assert {e.code for e in ended} == {0}, ended
    (report,) = reports(*ended)
    assert (report["verdict"], findings(report)) == ("pass", []), report["findings"]
    assert (report["world"]["ranks"], report["world"]["launcher"]) == (len(layout), launcher)
    assert placed(report) == layout
    assert report["missing_ranks"] == []
    world = len(layout)
    total = world * (world + 1) // 2
    assert summed(*ended) == [f"rank {rank} of {world} summed up {total}" for rank in range(world)]
    assert Counter(row["status"] for row in report["ranks"]) == {"ok": world}
    return report


def assert_broken_probe(ended: Ended, report: dict[str, Any]) -> None:
    """Assert that the report names the failure of distcheck on node3, with its last line, and blames nobody else."""
    assert (ended.code, findings(report)) == (70, ["launch-probe-broken"]), report
    found = finding(report, "launch-probe-broken")
    assert (found["scope"], found["nodes"], found["ranks"]) == ("tool", ["node3"], [4, 5])
    assert re.search(
        r"failed on node3 \(ranks 4-5\): distcheck \S+: the probe failed: RuntimeError: no such thing$",
        found["message"],
    )
    # Open MPI ends all other probes at once; those that have not joined by then are missing, too.
    assert {4, 5} <= set(report["missing_ranks"])
    assert report["exclude"]["nodes"] == []


def limit(cluster, node, mbit):
    """Limit what a node sends on its first network to so many Mbit/s."""
    change(cluster, node, *f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst 64kb latency 50ms".split())


def change(cluster, node, *command):
    ended = cluster.netns(node, *command)
    assert ended.code == 0, ended


def filtered(cluster, nodes, *rules):
    """Have a node, or several, treat what comes in by rules of nftables; what is not named in them passes."""
    chain = "add table inet f; add chain inet f in { type filter hook input priority 0; }; "
    for node in [nodes] if isinstance(nodes, str) else nodes:
        change(cluster, node, "nft", chain + "; ".join(f"add rule inet f in {rule}" for rule in rules))
