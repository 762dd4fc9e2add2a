"""Rules about inherited variables that change how the job's programs behave."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.job.addresses import exempt, is_here, rank_zero
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.settings import started_by_distcheck
from distcheck.rules.wording import are, found, listed, named

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

    Fix: Unset torchrun's inherited variables before starting the job.

        unset ${!TORCHELASTIC_@}

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
    tried, proof = bind.outcome if bind else "not tried", "no torchrun is among its parent processes"
    if bind and tried == "bound":
        proof = f"port {bind.port} was free on rank 0"
    elif tried in {"agent", "in-use"}:
        return
    else:
        affected = [r for r in affected if not _has_agent(job, r)]
    if affected:
        yield found(
            job,
            affected,
            f"{named(job, affected)}: TORCHELASTIC_USE_AGENT_STORE is True, but {proof}; no agent serves the store",
            severity="error" if tried == "bound" else "warning",
            evidence={"bind": tried, "ancestors": list(job.process_of(affected[0]).ancestors[:4])},
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

    Fix: No action if intended; otherwise unset them before torchrun starts.

        unset ${!PET_@}

    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for names, ranks in ranks_by(job, partial(_in_force, job)).items():
        message = f"{named(job, ranks)}: {listed(names)} {are(names)} set; "
        message += "torchrun uses them for options that its command line does not set"
        yield found(job, ranks, message, evidence={name: ranks[0].environment[name] for name in names})


def _in_force(job: Job, rank: RankFacts) -> tuple[str, ...] | None:
    """Return the PET_* variables that torchrun's command line, if known, does not override; None without."""
    if started_by_distcheck(job, rank) or "KUBERNETES_SERVICE_HOST" in rank.environment:
        return None
    line = next((c for c in job.process_of(rank).ancestors if _AGENT.search(c)), "").replace("_", "-")
    given = (name for name, value in sorted(rank.environment.items()) if name.startswith("PET_") and value)
    return tuple(name for name in given if f"--{name[4:].lower().replace('_', '-')}" not in line) or None


@rule("environment", severity="info", scope="rank", of=each_rank)
def env_proxy_vars(_: Job, rank: RankFacts) -> Fault | None:
    """A proxy is set, and no_proxy does not cover MASTER_ADDR.

    torch's own store does not use proxies. An etcd or HTTP rendezvous, gRPC, Ray and downloads do, and they
    hang if the proxy cannot reach the cluster's internal network. Found by http_proxy or https_proxy in upper or
    lower case, with a no_proxy that does not cover MASTER_ADDR.

    Fix: Add the nodes to no_proxy.

        export no_proxy=$MASTER_ADDR,localhost,127.0.0.1 NO_PROXY=$no_proxy
    """
    variables, address = rank.environment, rank.placement.master_addr
    proxies = [name for name, value in variables.items() if name.lower() in {"http_proxy", "https_proxy"} and value]
    lists = ",".join(variables.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    if not proxies or not address or is_here(address) or exempt(address, lists):
        return None
    return Fault(
        f"{listed(proxies)} {are(proxies)} set and no_proxy does not cover {address}; etcd, gRPC and Ray use the "
        "proxy, torch itself does not",
        evidence={"set": proxies, "no_proxy": variables.get("no_proxy", "")},
    )
