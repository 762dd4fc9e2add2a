"""What the tests of reachability do with a cluster: run `distcheck net`, read its reports, and spoil names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.inside import NODES, judged, reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.cluster import Cluster
    from real.ended import Ended

BY_RULE = dict[str, tuple[list[int], list[str]]]


def net(cluster: Cluster, *words: str, hosts: str = "node[1-4]", **env: str) -> tuple[Ended, dict[str, Any]]:
    """Run `distcheck net` from the head for two ranks on each host; the ranks see these variables."""
    return judged(cluster, "net", "--hosts", hosts, "--nproc", "2", "--env", "NCCL_*,GLOO_*", *words, **env)


def by_hand(
    cluster: Cluster, *words: str, only: Mapping[str, Mapping[str, str]] | None = None, master: str = "node1"
) -> list[tuple[Ended, list[dict[str, Any]]]]:
    """Start one rank on each node as a person does; `only` are variables of single nodes. Rank 0's comes first."""
    meeting = {"MASTER_ADDR": master, "MASTER_PORT": "29500", "WORLD_SIZE": str(len(NODES)), "LOCAL_RANK": "0"}
    running = [
        cluster.start(
            node, "distcheck", "net", *words, "--format", "json",
            env={**meeting, "RANK": str(rank), **(only or {}).get(node, {})},
        )
        for rank, node in enumerate(NODES)
    ]  # fmt: skip
    ended = [run.wait(60) for run in running]
    return [(e, reports(e)) for e in ended]


def blamed(report: Mapping[str, Any], severity: str = "error") -> BY_RULE:
    """Return every rule that found something of this severity, with its ranks and nodes; each must find one thing."""
    found = [f for f in report["findings"] if f["severity"] == severity]
    assert len({f["rule"] for f in found}) == len(found), found
    return {f["rule"]: (f["ranks"], f["nodes"]) for f in found}


def on(*nodes: int) -> tuple[list[int], list[str]]:
    """Return the ranks and names of nodes that have two ranks each."""
    return [rank for n in nodes for rank in (2 * n - 2, 2 * n - 1)], [f"node{n}" for n in nodes]


def rename(cluster: Cluster, node: str, name: str, address: str) -> None:
    """Let a name lead elsewhere on one node; nowhere when the address is empty."""
    lines = [line for line in cluster.read(node, "/etc/hosts").splitlines() if line.split()[1:] != [name]]
    cluster.write(node, "/etc/hosts", "\n".join([*lines, *([f"{address} {name}"] if address else []), ""]))
