"""The variables that torch reads: who set them, which are unset, and the agreed port."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from distcheck.rules.wording import once, table_of
from distcheck.selection.placement import Table, integer

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.placement import Launcher
    from distcheck.facts.rank import RankFacts

PORT = 29500
"""The port that torchrun takes by default (https://docs.pytorch.org/docs/stable/elastic/run.html)."""
LARGEST_PORT = 65535
TORCH_READS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables that ``env://`` reads, in torch's order (torch/distributed/rendezvous.py)."""
MPI_LAUNCHERS: frozenset[Launcher] = frozenset({"openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod"})


def started_by_distcheck(job: Job, rank: RankFacts) -> bool:
    """Whether distcheck started this rank, so that the user set none of its variables."""
    return job.asked.started_here or rank.placement.launcher == "distcheck"


def chosen_by_agent(job: Job, rank: RankFacts) -> bool:
    """Whether torchrun's agent chose MASTER_ADDR: c10d takes the first agent's host name."""
    agent = job.process_of(rank).agent
    if agent is None or agent.program == "accelerate":
        return False
    address = rank.placement.master_addr or ""
    words = (
        *agent.arguments,
        rank.environment.get("PET_MASTER_ADDR", ""),
        rank.environment.get("PET_RDZV_ENDPOINT", ""),
    )
    return not any(address in word for word in words)


def unset(rank: RankFacts) -> tuple[str, ...]:
    """Return the variables that torch reads and that are set neither here nor by an option.

    Without a launcher a placement's value can only come from an option. A launcher's own variables give rank
    and world size to distcheck, not to torch.
    """
    where = rank.placement
    by_options = table_of(rank) is None or where.by_options
    given = {
        "RANK": by_options and where.rank is not None,
        "WORLD_SIZE": by_options and where.world_size is not None,
        "MASTER_ADDR": bool(where.master_addr) and not where.master_derived,
        "MASTER_PORT": where.master_port is not None and not where.master_derived,
    }
    return tuple(v for v in TORCH_READS if v not in rank.environment and not given[v])


def mapping(table: Table) -> str:
    """Return the export that maps a launcher's variables to those that torch and scripts read."""
    pairs = [("RANK", table.rank), ("WORLD_SIZE", table.world_size), ("LOCAL_RANK", table.local_rank)]
    return "export " + " ".join(f"{name}=${source}" for name, source in pairs)


@once
def agreed_port(job: Job) -> int | None:
    """Return the MASTER_PORT of most ranks, rank 0's in a tie, None if no rank has one."""
    given = [r.placement for r in job.ranks if not r.placement.master_derived]
    votes = Counter(p.master_port for p in given if p.master_port is not None and 1 <= p.master_port <= LARGEST_PORT)
    zero = {p.master_port for p in given if p.rank == 0}
    return max(votes, key=lambda port: (votes[port], port in zero), default=None)


def free_port(job: Job, *taken: int) -> int | None:
    """Return a port found free on rank 0's node, not one of `taken`; None if none was probed."""
    processes = [job.process_of(r) for r in sorted(job.ranks, key=lambda r: r.placement.rank != 0)]
    return next((port for p in processes for port in p.free_ports if port not in taken), None)


@once
def usual_port(job: Job) -> int:
    """Return the port for ranks without one: the other ranks', the derived one, or a free one."""
    derived = next((r.placement.master_port for r in job.ranks if r.placement.master_derived), None)
    return agreed_port(job) or derived or free_port(job) or PORT


def number(rank: RankFacts, variable: str) -> int | None:
    """Return a rank's variable as ``int()`` parses it, None if unset or not an integer."""
    return integer(rank.environment.get(variable))


def expected(name: str, value: str = "") -> str:
    """Return what is expected of a variable instead of `value`, as text."""
    texts = {
        "MASTER_ADDR": "the name or IP address of rank 0's host",
        "MASTER_PORT": "a port from 1 to 65535",
    }
    too_large = value.strip().lstrip("+-").isdecimal()
    return texts.get(name, "an integer below 2147483648" if too_large else "an integer")
