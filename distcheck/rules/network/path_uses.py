"""What uses the paths between nodes: a fault of a path that the job's libraries do not use is no error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.rules.collectives.nccl_logs import logged, nodes_in_use
from distcheck.rules.fabric.lines import FabricPort, views
from distcheck.rules.network.interface_choices import LIBRARIES, NAMES, milder, severity
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import grouped, listed, once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.network import PeerTrial
    from distcheck.facts.node import NodeFacts
    from distcheck.rules.finding import Fault, Severity


class PathUse(NamedTuple):
    """The paths of a job that have one use."""

    job: Job
    """With the trials of these paths only."""
    worst: Severity
    """The most that a fault of these paths may be."""
    note: str
    """What uses these paths, for a message; '' for the libraries of the job."""

    def judged(self, finding: Fault) -> Fault:
        """Return a finding about these paths with the severity and the message that fit their use."""
        weight = milder(finding.severity or "error", self.worst)
        return msgspec.structs.replace(finding, severity=weight, message=finding.message + self.note)


def path_uses(job: Job) -> list[PathUse]:
    """Return the paths of a job by their use, first those of its libraries.

    The others lead to the address for rank 0, which serves the rendezvous, or to that of a library that the job was not
    made for. A node of which no address of the job's libraries was tried may use the one that was.
    """
    choices = survey(job).choices
    used = [x for x in LIBRARIES if severity(job, x, chosen=any(c.chosen(x) for c in choices)) == "error"]
    served = {trial.target for trial in job.peers if not set(used).isdisjoint(trial.uses)}

    def use(trial: PeerTrial) -> str:
        if trial.target not in served or not set(used).isdisjoint(trial.uses):
            return ""
        return "the rendezvous" if "master" in trial.uses else listed([NAMES[x] for x in LIBRARIES if x in trial.uses])

    by_use = grouped(job.peers, use)
    if by_use.keys() <= {""}:
        return [PathUse(job, "error", "")]
    use_another = f"{listed([NAMES[x] for x in used])} {'uses' if len(used) == 1 else 'use'} another path"
    return [
        PathUse(
            msgspec.structs.replace(job, peers=tuple(by_use[other])),
            "error" if not other else "warning" if other == "the rendezvous" else "info",
            f"; {use_another}, only {other} uses this one" if other else "",
        )
        for other in sorted(by_use)
    ]


@once
def _adapters(job: Job) -> dict[str, tuple[FabricPort, ...]]:
    """Return the ports that NCCL uses, by node; empty if it uses sockets somewhere."""
    used = {view.node.key: view.taken for view in views(job) if not view.adapters.libibverbs}
    sockets = any(t.log.network == "Socket" for t in logged(job))
    return used if all(used.get(node.key) for node in nodes_in_use(job)) and not sockets else {}


def adapters_beside(job: Job, node: NodeFacts, interface: str) -> list[str]:
    """Return the ports that NCCL uses on a node, empty if it uses this interface."""
    ports = _adapters(job).get(node.key, ())
    roce = {gid.interface for line in ports for gid in line.port.gids.values()}
    return [] if interface in roce else [line.name for line in ports]
