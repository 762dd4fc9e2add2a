"""How processes tried to reach rank 0 and each other, and which ranks that concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.finding import Finding, Fix
from distcheck.rules.addresses import astray
from distcheck.rules.vocabulary import found, grouped, named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from distcheck.facts import Attempt, Job, PeerTrial, ProcessFacts, RankFacts

_MOST = 8
"""Pairs that a finding's evidence shows."""


def failing(job: Job, outcomes: set[str]) -> Iterator[tuple[list[RankFacts], list[Attempt]]]:
    """Return the ranks whose every try at the master door ended so, by where they knocked and how it ended.

    Silent where something else explains it: rank 0's own binding of the port; the roll call, held by another
    process, that found rank 0 missing; a node on which its probe could not be started; a MASTER_ADDR that is another
    host's than rank 0's. In a pod that may be a service's address, and is no explanation.
    """
    explained = any(p.bind is not None and p.bind.outcome in {"in-use", "denied", "failed"} for p in job.processes)
    if explained or (0 in job.missing_ranks and (job.met or _not_started(job, 0))):
        return
    lost = astray(job)
    if lost is not None and "KUBERNETES_SERVICE_HOST" not in lost.environment:
        return
    masters = {r.process: (r.placement.master_addr, r.placement.master_port) for r in reversed(job.ranks)}
    rank_0 = next((masters[r.process] for r in job.ranks if r.placement.rank == 0), None)
    failed = []
    for process in job.processes:
        attempts = at_master_door(process)
        if rank_0 is not None and masters.get(process.uid) != rank_0:
            continue  # it looked elsewhere: env-master-addr-differs and env-master-port-differs tell
        if attempts and all(a.outcome in outcomes for a in attempts):
            failed.append((process.uid, attempts))
    alike = grouped(failed, lambda item: tuple((a.address, a.port, a.outcome) for a in item[1]))
    for several in alike.values():
        yield ranks_of(job, {uid for uid, _ in several}), several[0][1]


def _not_started(job: Job, rank: int) -> bool:
    """Whether distcheck itself was to start a rank and nothing came home of it."""
    nodes = job.launched.nodes if job.launched else ()
    return any(rank in node.ranks and node.outcome != "reported" for node in nodes)


def at_master_door(process: ProcessFacts) -> list[Attempt]:
    """Return how a process fared at MASTER_ADDR:MASTER_PORT, by address."""
    return [a for a in process.attempts if a.door == "master"]


def tried(attempts: list[Attempt]) -> dict[str, str]:
    """Return as evidence how each address was tried, the last time and how often."""
    lines = {}
    for a in attempts:
        times = f"{a.tries} {'try' if a.tries == 1 else 'tries'}"
        lines[address_of(a)] = f"{a.outcome} after {times}" + (f": {a.detail}" if a.detail else "")
    return lines


def address_of(attempt: Attempt) -> str:
    """Write where a process knocked: 10.0.0.1:29500, [fd00::1]:29500."""
    return _endpoint(attempt.address, attempt.port)


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def ranks_of(job: Job, uids: Collection[str]) -> list[RankFacts]:
    """Return the ranks for which these processes speak."""
    return [r for r in job.ranks if r.process in uids]


def pairs(job: Job, failed: list[PeerTrial], words: str, commands: tuple[str, ...]) -> Finding:
    """Return the finding about pairs of processes that do not reach each other; `words` takes two names."""
    ranks = ranks_of(job, {uid for trial in failed for uid in (trial.source, trial.target)})
    ranks_by = grouped(ranks, lambda r: r.process)

    def name(uid: str) -> str:
        return named(job, ranks_by[uid]) if uid in ranks_by else "a process that is gone"

    first, rest = failed[0], len(failed) - 1
    more = f"; so it is with {rest} more {'pair' if rest == 1 else 'pairs'} of processes" if rest else ""
    shown = [f"{name(t.source)} to {name(t.target)}: {_reason(t)}" for t in failed[:_MOST]]
    return found(
        job,
        ranks,
        f"{words.format(name(first.source), name(first.target))} ({_reason(first)}){more}",
        Fix("Allow TCP between the nodes on the ports that the kernel chooses.", commands),
        scope="link",
        owner="admin",
        evidence={f"pair {n}": pair for n, pair in enumerate(shown, start=1)}
        | ({"more_pairs": len(failed) - _MOST} if len(failed) > _MOST else {}),
    )


def _reason(trial: PeerTrial) -> str:
    at = f"{trial.outcome} at {_endpoint(trial.address, trial.port)}"
    return f"{at}, {trial.detail}" if trial.detail and trial.detail != trial.outcome else at
