"""Whether a cluster's Slurm has every node idle and no job, and how it comes to be so again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cluster.node import ClusterError

if TYPE_CHECKING:
    from cluster.cluster import Cluster


def settle(cluster: Cluster) -> None:
    """End all jobs and resume all nodes; where that takes long, start Slurm's daemons anew without their memory."""
    if _idle(cluster):
        return
    cluster.run("head", "scancel", "--user=root")
    for node in cluster.nodes:  # refused for a node that is neither down nor drained
        cluster.run("head", "scontrol", "update", f"NodeName={node}", "State=RESUME")
    if not _wait_idle(cluster, 5):
        cluster.kill_service("head", "slurmctld")
        forget_head(cluster)
        cluster.serve()
        expect_idle(cluster)


def forget_head(cluster: Cluster) -> None:
    """End every slurmd: a new one reports to a new slurmctld at once, an old one is asked seconds later."""
    for node in cluster.nodes:
        cluster.kill_service(node, "slurmd")


def expect_idle(cluster: Cluster) -> None:
    if not _wait_idle(cluster, 60):
        raise ClusterError(f"Slurm's nodes are not idle: {_states(cluster)}")


def _wait_idle(cluster: Cluster, timeout: float) -> bool:
    until = time.monotonic() + timeout
    while not _idle(cluster):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _idle(cluster: Cluster) -> bool:
    states = _states(cluster).splitlines()
    idle = len(states) == len(cluster.nodes) and all(line.split()[1] == "idle" for line in states)
    return idle and not cluster.run("head", "squeue", "--noheader", timeout=20).out


def _states(cluster: Cluster) -> str:
    ended = cluster.run("head", "sinfo", "--noheader", "--Node", "--format=%N %t %E", timeout=20)
    return ended.out + ended.err
