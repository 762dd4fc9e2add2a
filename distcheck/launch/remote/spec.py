"""What every engine needs to know to start probes from outside a job."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from distcheck.selection.nodelist import deal

Engine = Literal["ssh", "slurm", "mpi"]


class Outside(NamedTuple):
    """A launch from outside: on which nodes, how many ranks, with which Python."""

    engine: Engine
    hosts: tuple[str, ...]
    """The nodes in the order of their ranks, as the user or the scheduler names them."""
    ranks_by_host: tuple[int, ...]
    """How many ranks each host is expected to have."""
    multiplies: bool
    """True when one probe per host starts its ranks, False when the launcher starts one task per rank."""
    master_addr: str
    master_port: int
    python: str = sys.executable
    setup: str = ""
    """Shell words that run before Python does."""
    arguments: tuple[str, ...] = ()
    """The user's own for srun or mpirun."""
    environment: dict[str, str] = {}  # noqa: RUF012 never changed
    """Variables to carry to the probes."""
    need: int | None = None
    """How many nodes suffice."""
    trimmed: bool = False
    """True when bad nodes of the allocation are left out."""
    distribution: tuple[str, int | None] = ("", None)
    """How srun deals tasks to nodes, as SLURM_DISTRIBUTION and SLURM_DIST_PLANESIZE say it; of no effect when
    `multiplies`."""

    @property
    def host_of_task(self) -> tuple[str, ...]:
        """The host of each task, as the launcher is expected to place them; empty where that is not known."""
        if self.multiplies:
            return self.hosts
        return tuple(self.hosts[index] for index in deal(self.ranks_by_host, *self.distribution))

    def ranks_by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the ranks that each host is expected to have; none where that is not known."""
        if self.multiplies:
            ends = list(itertools.accumulate(self.ranks_by_host))
            spans = zip(self.hosts, self.ranks_by_host, ends, strict=True)
            return {host: tuple(range(end - number, end)) for host, number, end in spans}
        ranks: dict[str, list[int]] = {host: [] for host in self.hosts}
        for rank, host in enumerate(self.host_of_task):
            ranks[host].append(rank)
        return {host: tuple(several) for host, several in ranks.items()}

    def without(self, left_out: tuple[str, ...]) -> Outside:
        """Return the launch on the other hosts; rank 0 moves when its host is left out."""
        kept = [(h, n) for h, n in zip(self.hosts, self.ranks_by_host, strict=True) if h not in left_out]
        moved = self.hosts[0] in left_out and self.master_addr == self.hosts[0]
        return self._replace(
            hosts=tuple(h for h, _ in kept),
            ranks_by_host=tuple(n for _, n in kept),
            master_addr=kept[0][0] if moved else self.master_addr,
            trimmed=True,
        )


class Words(NamedTuple):
    """How an engine's lines tell of which task or node they speak: group 1 names it, the last one is what it says."""

    of_task: re.Pattern[str]
    """The prefix that labels a task's lines."""
    of_node: tuple[re.Pattern[str], ...]
    """Lines of the engine itself that name a node."""


def probe_argv(launch: Outside, word: str) -> tuple[str, ...]:
    """Return the program that a node runs; `word` is the assignment, or - where it comes on standard input."""
    # Keeps modules in the folder of the job from hiding the standard library's; older versions have no such option.
    safe = ("-P",) if launch.python == sys.executable and sys.version_info >= (3, 11) and not _in_tree() else ()
    argv = (launch.python, *safe, "-m", "distcheck.run.remote_probe", word)
    if not launch.setup:
        return argv
    failed = '{ code=$?; echo "distcheck: --setup failed with exit code $code" >&2; exit 97; }'
    return ("bash", "-c", f"{{ {launch.setup}\n}} || {failed}\nexec {shlex.join(argv)}")


def _in_tree() -> bool:
    """Whether distcheck is imported from the working folder, as its developers do."""
    return str(Path.cwd()) in sys.path
