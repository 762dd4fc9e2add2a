"""Rules about variables that something else left in the environment, and that programs of the job obey."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import exempt, is_here, rank_zero
from distcheck.rules.job.settings import started_by_distcheck
from distcheck.rules.wording import are, found, grouped, listed, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts import Job, RankFacts

# Command lines of programs that run a torchelastic agent, or hand over to one.
_AGENT = re.compile(r"torchrun|torch[./]distributed[./](run|launch)|elastic|accelerate|lightning|fabric|deepspeed")


@rule("environment")
def env_torchelastic_leak(job: Job) -> Iterator[Outcome]:
    """A torchrun that is not there is said to hold the store, so nobody listens.

    With TORCHELASTIC_USE_AGENT_STORE=True rank 0 leaves the store to torchrun's agent and starts none.
    Inherited by a process that no agent started (a script run from inside a torchrun worker, a saved
    environment, Ray), it makes every rank wait for nobody: ``The client socket has timed out after 600000ms
    while trying to connect to (...)``. Found by the variable together with a MASTER_PORT that was free on
    rank 0; where that was not tried, by no agent among the processes that started this one, which is only a
    warning.

    Fix: ``unset ${!TORCHELASTIC_@}`` before the inner start.
    See: https://github.com/pytorch/pytorch/issues/65463
    """
    told = [
        r
        for r in job.ranks
        if r.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not started_by_distcheck(job, r)
    ]
    zero = rank_zero(job)
    if not told or (zero and zero not in told):
        return  # rank 0 decides whether there is a store; the others connect in either case
    bind = job.process_of(zero).bind if zero else None
    if bind and bind.outcome in {"agent", "in-use"}:
        return
    free = bind is not None and bind.outcome == "bound"
    orphans = told if free else [r for r in told if not _has_agent(job, r)]
    if not orphans:
        return
    proof = f"port {bind.port} was free on rank 0" if bind and free else "no torchrun is among its parent processes"
    yield found(
        job,
        orphans,
        f"{named(job, orphans)}: TORCHELASTIC_USE_AGENT_STORE is True, but {proof}: nobody would hold the store",
        Fix(
            "Remove torchrun's leftovers from the environment before starting the job.",
            ("unset ${!TORCHELASTIC_@}",),
        ),
        severity="error" if free else "warning",
        evidence={
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "bind": bind.outcome if bind else "not tried",
            "ancestors": list(job.process_of(orphans[0]).ancestors[:4]),
        },
    )


def _has_agent(job: Job, rank: RankFacts) -> bool:
    """Whether an agent may have started a rank; with no ancestors in sight nothing speaks against it."""
    ancestors = job.process_of(rank).ancestors
    return not ancestors or any(_AGENT.search(command) for command in ancestors)


@rule("environment")
def env_pet_leak(job: Job) -> Iterator[Outcome]:
    """Variables named PET_* change what torchrun does, whatever its command line leaves open.

    torchrun takes every option that is not on its command line from PET_<OPTION>: left over in a shell,
    PET_NNODES=2 makes it wait for a second node that never comes. Operators on Kubernetes set them on
    purpose, so they are not reported in a pod, nor where torchrun's command line says something else. Found
    by their names in the ranks' environment.

    Fix: ``unset ${!PET_@}`` before torchrun, unless they are meant.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    left = [
        (names, r)
        for r in job.ranks
        if not started_by_distcheck(job, r)
        and "KUBERNETES_SERVICE_HOST" not in r.environment
        and (names := _in_force(job, r))
    ]
    for names, pairs in grouped(left, lambda pair: pair[0]).items():
        ranks = [r for _, r in pairs]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed(names)} {are(names)} set; "
            "torchrun obeys them where its command line says nothing",
            Fix("Remove them before torchrun starts, unless they are meant.", ("unset ${!PET_@}",)),
            severity="warning",
            evidence={name: ranks[0].environment[name] for name in names},
        )


def _in_force(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the PET_* variables that torchrun's command line, where it is in sight, does not override."""
    line = next((c for c in job.process_of(rank).ancestors if _AGENT.search(c)), "").replace("_", "-")
    return tuple(
        name
        for name, value in sorted(rank.environment.items())
        if name.startswith("PET_") and value and f"--{name[4:].lower().replace('_', '-')}" not in line
    )


@rule("environment")
def env_proxy_vars(job: Job) -> Iterator[Outcome]:
    """A proxy is set, and the meeting place is not exempt from it.

    torch's own store does not use proxies, but an etcd or HTTP rendezvous, gRPC, Ray and downloads do, and
    then hang on a proxy that cannot reach the cluster's inside. Found by http_proxy or https_proxy in either
    case, with no_proxy not covering MASTER_ADDR.

    Fix: ``export no_proxy=$MASTER_ADDR,localhost,127.0.0.1``, and NO_PROXY likewise.
    """
    behind = []
    for r in job.ranks:
        proxies = tuple(n for n in r.environment if n.lower() in {"http_proxy", "https_proxy"} and r.environment[n])
        address = r.placement.master_addr
        names = ",".join(r.environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
        if proxies and address and not is_here(address) and not exempt(address, names):
            behind.append((proxies, r))
    for proxies, pairs in grouped(behind, lambda pair: pair[0]).items():
        ranks = [r for _, r in pairs]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed(proxies)} {are(proxies)} set and no_proxy does not "
            f"cover {ranks[0].placement.master_addr}; torch itself does not mind, etcd, gRPC and Ray do",
            Fix(
                "Exempt the nodes from the proxy.",
                ("export no_proxy=$MASTER_ADDR,localhost,127.0.0.1 NO_PROXY=$no_proxy",),
            ),
            severity="info",
            evidence={"set": list(proxies), "no_proxy": ranks[0].environment.get("no_proxy", "")},
        )
