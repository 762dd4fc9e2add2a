"""The processes of a job that stand in front of a launch command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.job.addresses import is_here
from distcheck.rules.wording import grouped, once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.launch_command import Stated
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts


class Launch(NamedTuple):
    """A process in front of a launch command, its node and its ranks."""

    process: ProcessFacts
    stated: Stated
    node: NodeFacts
    ranks: list[RankFacts]

    @property
    def local(self) -> bool:
        """Whether the nodes are to meet at an address at which each finds only itself."""
        return self.stated.master_addr == "localhost" or is_here(self.stated.master_addr)

    @property
    def place(self) -> str:
        """How a message names it: node1 pid 123."""
        return f"{self.node.name} pid {self.process.pid}"


@once
def all_launches(job: Job) -> list[Launch]:
    """Return the processes in front of a launch command, each with its node and its ranks."""
    of = grouped(job.ranks, lambda rank: rank.process)
    nodes = {node.key: node for node in job.nodes}
    return [
        Launch(process, process.launch, nodes[process.node], of.get(process.uid, []))
        for process in job.processes
        if process.launch is not None and process.node in nodes
    ]
