"""What a launch command, in front of which the gate stands, states about its ranks."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Rank
from distcheck.facts.engine import Engine
from distcheck.facts.quantities import count

NO_RANK, REFUSED = "0", "-1"
"""One process, which finds no rank in its variables; none, as the launcher ends."""
_EACH = {
    "task": "one rank per Slurm task",
    "auto": "one rank per GPU or CPU",
    "gpu": "one rank per GPU",
    "cpu": "one rank per CPU",
}


class Stated(Facts, frozen=True):
    """The ranks that a launch command starts."""

    by: str
    """The launcher as people call it: torchrun."""
    nproc: str = "1"
    """Ranks that it starts on this node: a number; gpu: one for each GPU, or one without GPUs; auto: one for each GPU,
    or for each CPU without GPUs; cpu: one for each CPU; task: none, as each of Slurm's tasks is a rank itself."""
    nodes: Count = 1
    fewest: Count = 0
    """The nodes with which it starts if no more come; 0: all."""
    node_rank: Rank | None = 0
    """None if the nodes get their numbers at the rendezvous."""
    master_addr: str = ""
    """Where the nodes meet; '' on this machine."""
    master_port: Count = 0
    """0: a free one."""
    rendezvous: str | None = None
    """The name by which its nodes recognize each other, if they meet at an endpoint."""
    mesh: str = ""
    """The sizes of its parallel dimensions, as --mesh takes them; '' if it names none."""
    hosts: tuple[tuple[str, Count], ...] = ()
    """The hosts on which it starts the ranks itself, each with its number of ranks; empty: it starts this node's."""
    starter: Literal["ssh", "mpi"] = "ssh"
    """How it starts them there."""
    environment: bool = False
    """Whether variables told a part of it."""
    file: str = ""
    """A file that told a part of it."""
    script: str = ""
    """The script or configuration that it reads on this node, '' if that is not known."""
    few_gpus: tuple[str, ...] = ()
    """Ranks that it starts where it sees no GPU, one GPU and so on, or these two; `nproc` where it sees more."""
    hosts_store: bool | None = None
    """Whether this node's agent is told to host the store of the rendezvous, or not to."""
    engine: Engine | None = None
    """Of an inference engine."""
    refused: str = ""
    """Why it will refuse its words: --master-port 70000, expected …; '' if it will not."""
    remedy: str = ""
    """The options that it would take; '' if only the user knows."""

    def __str__(self) -> str:
        """2 nodes, this is node 0, 8 ranks each, master node1:29500."""
        each = count(int(self.nproc), "rank") if self.nproc.isdecimal() else _EACH[self.nproc]
        master = f", master {self.master_addr}:{self.master_port}" if self.master_port else ""
        if self.hosts:
            return f"{count(sum(n for _, n in self.hosts), 'rank')} on {count(len(self.hosts), 'host')}{master}"
        if self.nproc == "task":
            return f"{each}{master}"
        if self.nodes == 1:
            return f"{each} on this node{master}"
        nodes = f"{self.fewest} to {self.nodes} nodes" if self.fewest else count(self.nodes, "node")
        own = f", this is node {self.node_rank}" if self.node_rank is not None else ""
        return f"{nodes}{own}, {each} each{master}"
