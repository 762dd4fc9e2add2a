"""One healthy run on a cluster, and what it complained of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cluster.inside import reports

from soak.ways import WAYS

if TYPE_CHECKING:
    from cluster.cluster import Cluster

PATIENCE = 240
"""Seconds for one run; each of its own is bounded by --timeout (60 s)."""
_GONE_SECONDS = 5.0


def complaint(cluster: Cluster, way: str, command: tuple[str, ...]) -> str:
    """Run a command in one of the ways; return '' when it passed with no finding above info and left no process."""
    ended = [run.wait(PATIENCE) for run in WAYS[way](cluster, (*command, "--format", "json", "--join-timeout", "40"))]
    told = reports(*ended)
    if [e.code for e in ended] != [0] * len(ended) or len(told) != 1:
        return "; ".join(f"exit code {e.code}: {e.out[-2000:]}{e.err[-2000:]}" for e in ended)
    (report,) = told
    above = [f"{f['rule']} ({f['severity']}): {f['message']}" for f in report["findings"] if f["severity"] != "info"]
    odd = [f"rank {row['rank']} is {row['status']}" for row in report["ranks"] if row["status"] != "ok"]
    if above or odd or report["verdict"] != "pass":
        return "; ".join([f"verdict {report['verdict']}", *above, *odd])
    return _left(cluster)


def _left(cluster: Cluster) -> str:
    """Return what still runs on the nodes after a moment."""
    until = time.monotonic() + _GONE_SECONDS
    while left := cluster.processes():
        if time.monotonic() > until:
            return f"left behind on {', '.join(left)}: {[p.name() for found in left.values() for p in found]}"
        time.sleep(0.05)
    return ""
