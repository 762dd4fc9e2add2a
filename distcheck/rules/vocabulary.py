"""How rules name ranks, processes and nodes, and how a variable is set under each launcher."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from distcheck.facts import Job, Launcher, RankFacts
from distcheck.finding import Finding, Fix, Owner, Scope, Severity
from distcheck.placement import Table, find_table, integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

PORT = 29500
"""The port that torchrun takes by default (https://docs.pytorch.org/docs/stable/elastic/run.html)."""
TORCH_READS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What ``env://`` reads, in torch's order (torch/distributed/rendezvous.py)."""
MPI_LAUNCHERS = frozenset({"openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod"})
STARTERS: Mapping[Launcher, str] = {
    "torchrun": "torchrun",
    "slurm": "srun",
    "openmpi": "mpirun",
    "hydra": "mpiexec",
    "mvapich": "mpirun_rsh or mpiexec",
    "pals": "mpiexec",
    "jsrun": "jsrun",
    "horovod": "horovodrun",
}
"""The command that starts the ranks under a launcher."""
# How each of them hands a variable to the ranks on all nodes; a launcher that does so by itself is not listed.
HAND_OVER: Mapping[Launcher, str] = {
    "openmpi": "mpirun -x MASTER_ADDR={addr} -x MASTER_PORT={port} ...",
    "hydra": "mpiexec -genv MASTER_ADDR {addr} -genv MASTER_PORT {port} ...",
    "mvapich": "mpirun_rsh ... MASTER_ADDR={addr} MASTER_PORT={port} ...",
    "pals": "mpiexec --env MASTER_ADDR={addr} --env MASTER_PORT={port} ...",
    "jsrun": "jsrun -E MASTER_ADDR={addr} -E MASTER_PORT={port} ...",
}
SLURM_MASTER_ADDR = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
SLURM_MASTER_PORT = "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items, in the order in which their keys come up."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def listed(words: Sequence[str], most: int = 4) -> str:
    """Join words as prose does; more than `most` are counted."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def fold(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: 0-3,7."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbered(numbers: Iterable[int]) -> str:
    """Name ranks by their numbers alone: rank 1, ranks 0-3,7."""
    distinct = set(numbers)
    return f"{'rank' if len(distinct) == 1 else 'ranks'} {fold(distinct)}"


def numbers_of(ranks: Iterable[RankFacts]) -> tuple[int, ...]:
    """Return the numbers of ranks, in order; a rank whose number is unknown has none."""
    return tuple(sorted({r.placement.rank for r in ranks if r.placement.rank is not None}))


def nodes_of(job: Job, ranks: Iterable[RankFacts]) -> tuple[str, ...]:
    """Return the names of the nodes of ranks."""
    return tuple(dict.fromkeys(job.node_of(r).name for r in ranks))


def process_name(job: Job, rank: RankFacts) -> str:
    """Name the process that speaks for a rank: node2 pid 123."""
    return f"{job.node_of(rank).name} pid {job.process_of(rank).pid}"


def named(job: Job, ranks: Sequence[RankFacts]) -> str:
    """Name ranks in a message: rank 1 (node2 pid 123), ranks 0-7 (node1 and node2), process node1 pid 5."""
    nameless = [process_name(job, r) for r in ranks if r.placement.rank is None]
    known = [r for r in ranks if r.placement.rank is not None]
    words = []
    if known:
        where = process_name(job, known[0]) if len(known) == 1 else listed(nodes_of(job, known))
        words.append(f"{numbered(numbers_of(known))} ({where})")
    if nameless:
        words.append(f"{'process' if len(nameless) == 1 else 'processes'} {listed(nameless)}")
    return listed(words)


def found(
    job: Job,
    ranks: Sequence[RankFacts],
    message: str,
    fix: Fix,
    *,
    severity: Severity = "error",
    scope: Scope = "rank",
    owner: Owner = "user",
    confirmed: bool = True,
    evidence: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding about these ranks and their nodes."""
    return Finding(
        severity=severity,
        scope=scope,
        owner=owner,
        confirmed=confirmed,
        ranks=numbers_of(ranks),
        nodes=nodes_of(job, ranks),
        message=message,
        evidence=dict(evidence or {}),
        fix=fix,
    )


def odd_ones(groups: Mapping[K, list[RankFacts]]) -> list[RankFacts]:
    """Return the ranks outside the largest group; all of them when no group is the largest."""
    sizes = sorted((len(g) for g in groups.values()), reverse=True)
    tie = len(sizes) > 1 and sizes[0] == sizes[1]
    return [r for g in groups.values() if tie or len(g) < sizes[0] for r in g]


def spread(job: Job, variable: str, groups: Mapping[K, list[RankFacts]]) -> str:
    """Say who has which value of a variable, the most common value first."""
    in_order = sorted(groups.items(), key=lambda item: -len(item[1]))
    return "; ".join(
        f"{named(job, ranks)} {'has' if len(ranks) == 1 else 'have'} {variable} {value}"
        for value, ranks in in_order
    )


def started_by_distcheck(job: Job, rank: RankFacts) -> bool:
    """Whether distcheck placed this rank itself, so that no variable is the user's."""
    return job.asked.started_here or rank.placement.launcher == "distcheck"


def table_of(rank: RankFacts) -> Table | None:
    """Return the table of the launcher whose variables a rank shows."""
    return find_table(rank.environment)


def starter(rank: RankFacts) -> str:
    """Name the command that started a rank, '' when no launcher did."""
    table = table_of(rank)
    return STARTERS[table.launcher] if table else ""


def unset(rank: RankFacts) -> tuple[str, ...]:
    """Return which of the variables that torch reads nobody set, leaving out what the options give.

    Without a launcher a placement's value can only come from an option; a launcher's own variables give rank and
    world size to distcheck, not to torch.
    """
    where = rank.placement
    by_options = table_of(rank) is None or where.by_options
    given = {
        "RANK": by_options and where.rank is not None,
        "WORLD_SIZE": by_options and where.world_size is not None,
        "MASTER_ADDR": bool(where.master_addr),
        "MASTER_PORT": where.master_port is not None,
    }
    return tuple(v for v in TORCH_READS if v not in rank.environment and not given[v])


def torch_would_raise(rank: RankFacts) -> str:
    """Return what ``init_process_group()`` raises when a variable is unset or empty: it names the first."""
    first = next((v for v in TORCH_READS if not rank.environment.get(v)), TORCH_READS[0])
    return (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        f"environment variable {first} expected, but not set"
    )


def mapping(table: Table) -> str:
    """Return the export that turns a launcher's variables into those that torch and scripts read."""
    pairs = [("RANK", table.rank), ("WORLD_SIZE", table.world_size), ("LOCAL_RANK", table.local_rank)]
    return "export " + " ".join(f"{name}=${source}" for name, source in pairs)


def first_host(job: Job) -> str:
    """Return the name of rank 0's node, 127.0.0.1 for a job on one node, a placeholder when nothing is known."""
    zero = next((r for r in job.ranks if r.placement.rank == 0), None)
    if len(job.nodes) == 1 and job.world_size in {None, len(job.ranks)}:
        return "127.0.0.1"
    return job.node_of(zero).name if zero else "HOST_OF_RANK_0"


def master_commands(job: Job, rank: RankFacts, *variables: str) -> tuple[str, ...]:
    """Return what to type so that all ranks know where to meet."""
    names = variables or ("MASTER_ADDR", "MASTER_PORT")
    launcher = table_of(rank)
    if launcher and launcher.launcher in HAND_OVER:
        return (HAND_OVER[launcher.launcher].format(addr=first_host(job), port=PORT),)
    return tuple(export(job, rank, name) for name in names)


def export(job: Job, rank: RankFacts, variable: str) -> str:
    """Return the line that sets a variable rightly: from the launcher's own where it has one, else by formula."""
    table = table_of(rank)
    slurm = "SLURM_JOB_ID" in rank.environment and (table is None or table.launcher == "slurm")
    if table and table.launcher != "torchrun":
        source = {
            "RANK": table.rank,
            "WORLD_SIZE": table.world_size,
            "LOCAL_RANK": table.local_rank,
            "LOCAL_WORLD_SIZE": table.local_world_size,
            "GROUP_RANK": table.node_rank,
        }.get(variable)
        if source:
            return f"export {variable}=${source}"
    here = len(job.ranks_on(job.node_of(rank)))
    value = {
        "RANK": "$((NODE_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK))",
        "WORLD_SIZE": str(max(job.world_size or 0, len(job.ranks))),
        "LOCAL_RANK": f"$((RANK % {here}))",
        "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": "$NODE_RANK",
        "MASTER_ADDR": first_host(job),
        "MASTER_PORT": str(PORT),
    }[variable]
    if slurm and variable == "MASTER_ADDR":
        return SLURM_MASTER_ADDR
    if slurm and variable == "MASTER_PORT":
        return SLURM_MASTER_PORT
    return f"export {variable}={value}"


def number(rank: RankFacts, variable: str) -> int | None:
    """Return a rank's variable as torch's ``int()`` reads it, None when it is unset or no number."""
    return integer(rank.environment.get(variable))
