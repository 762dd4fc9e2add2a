"""The launch specification: what every engine needs to start probes from outside a job."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from typing import Literal, NamedTuple

from distcheck.probe.working_directory import python
from distcheck.selection.nodelist import deal

CLOSE = b"close\n"
"""Sent to a probe's standard input over ssh: missing processes will not come."""

Engine = Literal["ssh", "slurm", "mpi"]


class Outside(NamedTuple):
    """A launch from outside: on which nodes, how many ranks, with which Python."""

    engine: Engine
    hosts: tuple[str, ...]
    """The nodes in rank order, as the user or the scheduler names them."""
    ranks_by_host: tuple[int, ...]
    """How many ranks each host is expected to have."""
    multiplies: bool
    """True if one probe per host starts its ranks, False if the launcher starts one task per rank."""
    master_addr: str
    master_port: int
    python: str = sys.executable
    setup: str = ""
    """Shell commands that run before Python."""
    arguments: tuple[str, ...] = ()
    """The user's options for srun or mpirun."""
    environment: dict[str, str] = {}  # noqa: RUF012 never changed
    """Variables to carry to the probes."""
    trimmed: bool = False
    """True if bad nodes of the allocation are left out."""
    distribution: tuple[str, int | None] = ("", None)
    """How srun distributes tasks (SLURM_DISTRIBUTION, SLURM_DIST_PLANESIZE); no effect if `multiplies`."""

    @property
    def host_of_task(self) -> tuple[str, ...]:
        """The expected host of each task; empty if unknown."""
        if self.multiplies:
            return self.hosts
        return tuple(self.hosts[index] for index in deal(self.ranks_by_host, *self.distribution))

    def ranks_by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the expected ranks of each host; none if unknown."""
        if self.multiplies:
            ends = list(itertools.accumulate(self.ranks_by_host))
            spans = zip(self.hosts, self.ranks_by_host, ends, strict=True)
            return {host: tuple(range(end - number, end)) for host, number, end in spans}
        ranks: dict[str, list[int]] = {host: [] for host in self.hosts}
        for rank, host in enumerate(self.host_of_task):
            ranks[host].append(rank)
        return {host: tuple(several) for host, several in ranks.items()}

    def without(self, left_out: tuple[str, ...]) -> Outside:
        """Return the launch without these hosts; rank 0 moves if its host is left out."""
        kept = [(h, n) for h, n in zip(self.hosts, self.ranks_by_host, strict=True) if h not in left_out]
        moved = self.hosts[0] in left_out and self.master_addr == self.hosts[0]
        return self._replace(
            hosts=tuple(h for h, _ in kept),
            ranks_by_host=tuple(n for _, n in kept),
            master_addr=kept[0][0] if moved else self.master_addr,
            trimmed=True,
        )


class Command(NamedTuple):
    """One command: a program of this machine, or a line for the shell of a node."""

    key: str
    """The node's name; the engine's for a program."""
    argv: tuple[str, ...] = ()
    """The program that starts all probes; empty when `line` goes to a node by ssh."""
    line: str = ""
    host: str = ""
    """Where `line` goes if the key is not the node's name."""
    stdin: bytes = b""
    """Written to the node's standard input, which then stays open until the probe must stop."""


class Words(NamedTuple):
    """Patterns for an engine's lines: group 1 is the task or node, the last group the text."""

    of_task: re.Pattern[str]
    """The prefix that labels a task's lines."""
    of_node: tuple[re.Pattern[str], ...]
    """Lines of the engine itself that name a node."""


def probe_argv(launch: Outside, word: str, module: str = "distcheck.run.remote_probe") -> tuple[str, ...]:
    """Return a node's command; `word` is the assignment, or - if it comes on standard input."""
    argv: tuple[str, ...] = (launch.python, "-m", module, word)
    if launch.python == sys.executable:
        argv = (*python(module, word),)
    if not launch.setup:
        return argv
    failed = '{ code=$?; echo "distcheck: --setup failed with exit code $code" >&2; exit 97; }'
    return ("bash", "-c", f"{{ {launch.setup}\n}} || {failed}\nexec {shlex.join(argv)}")
