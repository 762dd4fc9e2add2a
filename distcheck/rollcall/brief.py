"""Brief reports: where every rank is a process of its own, one process sends the facts of their node for all.

The processes of a node see the same node. Their copies would take most of the leader's time and memory in a job of a
hundred thousand processes. So the process of local rank 0, which also reads what is read once per node, sends the
node's large facts, and the others a digest of the GPUs that they see. The leader asks for the facts where a digest
differs, as where each process may see its own GPU only, or where no process of the node has sent them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.merge import identity
from distcheck.facts.node import NodeFacts
from distcheck.rollcall.protocol import Report

LEFT_OUT = Missing("only the process of local rank 0 sends them")


def brief(report: Report) -> Report:
    """Return a report without the node's large facts; whole if the node's facts are this process's own."""
    node = report.node
    first = len(report.ranks) != 1 or not report.ranks[0].placement.local_rank
    if first or node.storage is not None or _reads_health(node.gpus):
        return report
    short = replace(
        node,
        interfaces=LEFT_OUT,
        network=None,
        gpus=node.gpus and LEFT_OUT,
        pci=node.pci and LEFT_OUT,
        xids=None if node.xids is None else LEFT_OUT,
        modules={},
    )
    return replace(report, node=short, brief=digest(node))


def _reads_health(gpus: Gpus | Missing | None) -> bool:
    """Return whether a process reads the health of the GPUs that it sees, or would if NVML answered."""
    if isinstance(gpus, Gpus):
        return bool(gpus.unread) or any(gpu.health is not None for gpu in gpus.devices)
    return gpus is not None


def digest(node: NodeFacts) -> str:
    """Return a short text that is the same for processes that see the same GPUs."""
    gpus = node.gpus
    seen = identity(gpus.devices) if isinstance(gpus, Gpus) else gpus
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def filled(reports: Sequence[Report], own: NodeFacts | None) -> Sequence[Report]:
    """Return reports with the facts that other processes of their nodes sent; some may stay brief.

    `own` are the facts of the leader's node.
    """
    if not any(report.brief for report in reports):
        return reports
    nodes = [*(report.node for report in reports if not report.brief), *([own] if own else [])]
    whole = {(node.key, digest(node)): node for node in reversed(nodes)}
    found = (whole.get((report.node.key, report.brief)) for report in reports)
    return [replace(r, node=node, brief="") if r.brief and node else r for r, node in zip(reports, found, strict=True)]
