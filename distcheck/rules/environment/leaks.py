"""Rules about inherited variables that change how the job's programs behave."""

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

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

# Command lines of programs that run a torchelastic agent or start one.
_AGENT = re.compile(r"torchrun|torch[./]distributed[./](run|launch)|elastic|accelerate|lightning|fabric|deepspeed")


@rule("environment", scope="rank")
def env_torchelastic_leak(job: Job) -> Iterator[Outcome]:
    """TORCHELASTIC_USE_AGENT_STORE is set, but no torchrun agent serves the store.

    With TORCHELASTIC_USE_AGENT_STORE=True rank 0 expects torchrun's agent to serve the store and does not start one.
    A process that no agent started can inherit the variable (a script run from inside a torchrun worker, a saved
    environment, Ray). Every rank then waits for a store that does not exist: ``The client socket has timed out after
    600000ms while trying to connect to (...)``. Found by the variable together with a MASTER_PORT that was free on
    rank 0. If the port was not tried, it is found by the absence of an agent among the parent processes, which is only
    a warning.

    Fix: ``unset ${!TORCHELASTIC_@}`` before starting the inner job.
    See: https://github.com/pytorch/pytorch/issues/65463
    """
    affected = [
        r
        for r in job.ranks
        if r.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not started_by_distcheck(job, r)
    ]
    zero = rank_zero(job)
    if not affected or (zero and zero not in affected):
        return  # rank 0 decides whether to start a store; the others connect in either case
    bind = job.process_of(zero).bind if zero else None
    if bind and bind.outcome in {"agent", "in-use"}:
        return
    free = bind is not None and bind.outcome == "bound"
    orphans = affected if free else [r for r in affected if not _has_agent(job, r)]
    if not orphans:
        return
    proof = f"port {bind.port} was free on rank 0" if bind and free else "no torchrun is among its parent processes"
    yield found(
        job,
        orphans,
        f"{named(job, orphans)}: TORCHELASTIC_USE_AGENT_STORE is True, but {proof}; no agent would serve the store",
        Fix(
            "Unset torchrun's inherited variables before starting the job.",
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
    """Whether an agent may have started a rank; True also where its ancestors are unknown."""
    ancestors = job.process_of(rank).ancestors
    return not ancestors or any(_AGENT.search(command) for command in ancestors)


@rule("environment", severity="warning", scope="rank")
def env_pet_leak(job: Job) -> Iterator[Outcome]:
    """PET_* variables set options that torchrun's command line does not.

    torchrun takes every option that is not on its command line from PET_<OPTION>. PET_NNODES=2 from an earlier
    shell makes it wait for a second node that never joins. Kubernetes operators set these variables on purpose, so
    they are silent in a pod, and where torchrun's command line overrides them. Found by their names in the ranks'
    environment.

    Fix: ``unset ${!PET_@}`` before torchrun, unless they are intended.
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
            "torchrun uses them for options that its command line does not set",
            Fix("No action if intended; otherwise unset them before torchrun starts.", ("unset ${!PET_@}",)),
            evidence={name: ranks[0].environment[name] for name in names},
        )


def _in_force(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the PET_* variables that torchrun's command line, if known, does not override."""
    line = next((c for c in job.process_of(rank).ancestors if _AGENT.search(c)), "").replace("_", "-")
    return tuple(
        name
        for name, value in sorted(rank.environment.items())
        if name.startswith("PET_") and value and f"--{name[4:].lower().replace('_', '-')}" not in line
    )


@rule("environment", severity="info", scope="rank")
def env_proxy_vars(job: Job) -> Iterator[Outcome]:
    """A proxy is set, and no_proxy does not cover MASTER_ADDR.

    torch's own store does not use proxies. An etcd or HTTP rendezvous, gRPC, Ray and downloads do, and they
    hang if the proxy cannot reach the cluster's internal network. Found by http_proxy or https_proxy in upper or
    lower case, with a no_proxy that does not cover MASTER_ADDR.

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
            f"cover {ranks[0].placement.master_addr}; etcd, gRPC and Ray use the proxy, torch itself does not",
            Fix(
                "Add the nodes to no_proxy.",
                ("export no_proxy=$MASTER_ADDR,localhost,127.0.0.1 NO_PROXY=$no_proxy",),
            ),
            evidence={"set": list(proxies), "no_proxy": ranks[0].environment.get("no_proxy", "")},
        )
