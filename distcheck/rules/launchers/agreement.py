"""Rules about torchrun's agents on several nodes: options, clocks and common world."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.agents import ElasticAgent, agents_met, agents_of, outside, ranks_of, too_few_met
from distcheck.rules.job.settings import PORT
from distcheck.rules.wording import are, brief, by_name, found, grouped, listed, majority, named, nodes_of, once
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

# The c10d rendezvous drops a node whose last heartbeat, by its own clock, is older than keep_alive_interval times
# keep_alive_max_attempt by the others' clocks (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
_ATTEMPTS = "keep_alive_max_attempt"
_INTERVAL_SECONDS, _USUAL_ATTEMPTS = 5, 3
_WARN_SHARE = 2 / 3
"""Share of the tolerated skew from which it is a warning: heartbeats are late as well."""
_REPORTED_SECONDS = 1.0
_ALIKE = {
    "rdzv-backend": "static",
    "rdzv-id": "none",
    "rdzv-endpoint": "",
    "rdzv-conf": "",
    "master-addr": "127.0.0.1",
    "master-port": str(PORT),
    "max-restarts": "0",
}
"""Options that agents of one job share, with torchrun's defaults (torch/distributed/run.py)."""


@rule("environment", scope=("job", "node"))
def torchrun_nnodes_mismatch(job: Job) -> Iterator[Outcome]:
    """The agents have different ``--nnodes``, or their world lacks nodes.

    With the static rendezvous the agent with node rank 0 starts as soon as the number of agents in its own ``--nnodes``
    has joined. An agent beyond that number waits forever without a message. The c10d rendezvous starts with fewer nodes
    than an exact ``--nnodes`` if it drops one: the clock of that node is more than 15 seconds off, or it left. Without
    ``--nnodes`` every node on which srun starts torchrun trains alone, and an elastic ``--nnodes 1:4`` starts with the
    nodes that joined within 30 seconds.

    Found by comparing the agents' command lines between the nodes, and GROUP_WORLD_SIZE with ``--nnodes`` and with the
    nodes of the Slurm step. A node of the step that is in no world is named. Values that contradict the world are an
    error of the job. Fewer nodes than the minimum of ``--nnodes`` are an error that a retry may solve. Unused nodes of
    the step are a warning. A world smaller than the maximum of an elastic ``--nnodes`` is only an info. Silent for
    ``--standalone``, with which each node is alone on purpose.

    Fix: ``--nnodes $SLURM_NNODES``, the same on every node.
    """
    agents = [
        a
        for a in agents_of(job)
        if not (a.ignored_master or a.one_per_task or a.meets_itself or (a.lacks_id and a.wanted > 1))
    ]  # which other rules report
    several = {meant: group for meant, group in grouped(agents, lambda a: a.nnodes).items() if meant}
    if len(several) > 1:
        yield _contradiction(job, several)
        return
    short, out = too_few_met(job), outside(job)
    if agents and short is not None:
        skew = _skew(job)
        if skew is None or not skew.dropped:
            yield _too_few(agents[0], *short, out)
        return
    for in_step, alike in grouped(agents, lambda a: a.alone_in_step).items():
        first, ranks = alike[0], ranks_of(alike)
        here = agents_met(job) or first.world
        most = first.step_nodes if in_step else (first.nnodes or (0, 0))[1]
        if here is None or here >= most:
            continue
        source = "Slurm's step has" if in_step else "--nnodes allows"
        left = f"; {listed(out)} {are(out)} in no world" if in_step and out else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: torchrun's world has {count(here, 'node')} ({_given(first)}); {source} {most}{left}",
            Fix(
                "Set --nnodes to the number of nodes that train together; no action if the others are idle on purpose.",
                (first.restarted({"nnodes": "$SLURM_NNODES" if in_step else str(most)}),),
            ),
            severity="warning" if in_step else "info",
            evidence={"GROUP_WORLD_SIZE": here, "wanted": most, "agent": first.command}
            | ({"in no world": ", ".join(out)} if left else {}),
        )


def _given(agent: ElasticAgent) -> str:
    return f"--nnodes {brief(agent.options['nnodes'])}" if "nnodes" in agent.options else "no --nnodes"


def _on(job: Job, agents: Iterable[ElasticAgent]) -> str:
    return listed(nodes_of(job, ranks_of(agents)))


def _contradiction(job: Job, several: dict[tuple[int, int], list[ElasticAgent]]) -> Fault:
    """Report agents with different --nnodes; an error if the world contradicts one of them."""
    agents = [agent for group in several.values() for agent in group]
    here, out, first = agents_met(job), outside(job), agents[0]
    fits = all(least <= (here or 0) <= most for least, most in several)
    # Agents with a larger number than the world's expect others, which wait forever if they were started.
    more = max(most for _, most in several)
    values = "; ".join(f"{_given(group[0])} on {_on(job, group)}" for group in several.values())
    message = f"torchrun's agents have different numbers of nodes: {values}"
    if here is not None:
        message += f"; their world has {count(here, 'node')}"
        if out:
            message += f", and {listed(out)} of the Slurm step {are(out)} not in it"
        elif more > here:
            message += f", and an agent of another node waits forever if {more} were started"
    nnodes = "$SLURM_NNODES" if "SLURM_JOB_ID" in first.rank.environment else str(more)
    return found(
        job,
        ranks_of(agents),
        message,
        Fix("Set the same --nnodes for every agent.", (first.restarted({"nnodes": nnodes}),)),
        severity="warning" if fits else "error",
        evidence=by_name((_on(job, group), group[0].command) for group in several.values())
        | {"GROUP_WORLD_SIZE": here}
        | ({"in no world": ", ".join(out)} if out else {}),
    )


def _too_few(first: ElasticAgent, here: int, least: int, out: tuple[str, ...]) -> Fault:
    """Report a world that lacks nodes although all agents have the same --nnodes."""
    who = f"; {listed(out)} {are(out)} not in it" if out else ""
    slurm = first.rank.environment.get("SLURM_JOB_ID")
    step = f"srun --overlap --jobid={slurm} --ntasks-per-node=1 date +%s.%N"
    return Fault(
        f"torchrun started a world of {count(here, 'node')}, and {_given(first)} needs {least}{who}",
        Fix(
            "The rendezvous dropped an agent, or the agent left. Compare the nodes' clocks, which may differ by at "
            "most 15 s, read the log of each agent, and restart the job.",
            (step, "sudo chronyc makestep") if slurm is not None else ("date +%s.%N",),
        ),
        {"GROUP_WORLD_SIZE": here, "agent": first.command},
        scope="node",
        owner="unknown",
        confirmed=False,
        nodes=out,
    )


@rule("meeting", severity="warning")
def torchrun_options_differ(job: Job) -> Iterator[Outcome]:
    """The agents of one job have different values of options that they should share.

    They met, so the job starts. Different ``--max-restarts`` are a warning: after a failure one agent gives up, while
    the others restart their ranks and wait for it, ``RendezvousTimeoutError`` after ten minutes. Different names of one
    endpoint, or another ``--rdzv-conf``, are only an info. Found by comparing the agents' command lines and PET_*
    variables.

    Fix: start the agents with the same command line on all nodes.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    known = [agent for agent in agents_of(job) if agent.facts]
    by_option = {
        name: grouped(known, lambda a, name=name, usual=usual: a.options.get(name) or usual)  # type: ignore[misc]
        for name, usual in _ALIKE.items()
    }
    differing = {name: values for name, values in by_option.items() if len(values) > 1}
    if not differing:
        return
    name = "max-restarts" if "max-restarts" in differing else next(iter(differing))
    values = differing[name]
    most = majority({value: ranks_of(group) for value, group in values.items()})
    odd = [agent for value, group in values.items() if value != most for agent in group]
    shown = "; ".join(f"--{name} {brief(value)} on {_on(job, group)}" for value, group in values.items())
    yield found(
        job,
        ranks_of(odd),
        f"torchrun's agents have different options: {shown}",
        Fix(
            "Start the agents with the same command line on all nodes.",
            (odd[0].restarted({name: most or next(iter(values))}),),
        ),
        severity="warning" if name == "max-restarts" else "info",
        evidence=by_name(
            (f"--{name}", f"{value or 'not given'}: {', '.join(nodes_of(job, ranks_of(group)))}")
            for name, values in differing.items()
            for value, group in values.items()
        ),
    )


@rule("meeting", scope="node", owner="admin")
def elastic_clock_skew(job: Job) -> Iterator[Outcome]:
    """The nodes' clocks differ; torchrun's c10d rendezvous may drop a live node.

    Each agent writes its own clock's time as its heartbeat, and the others compare it with their clocks. The rendezvous
    drops a live agent that is more than 15 seconds behind (keep_alive_interval times keep_alive_max_attempt), with
    ``RendezvousClosedError`` or a rendezvous that restarts repeatedly. Found at the roll call, by the time that each
    process reported between two readings of the leader's clock. The reported skew is a lower bound. It is a
    warning from two thirds of the tolerated skew on. It is an error if the skew reaches the tolerated value and
    the world lacks nodes of ``--nnodes``. Only for ranks of a c10d rendezvous.

    Fix: NTP on all nodes: ``chronyc makestep``; until then ``--rdzv-conf keep_alive_max_attempt=N``, where N times
    keep_alive_interval is more than the skew.
    See: https://github.com/pytorch/pytorch/issues/111646
    """
    skew = _skew(job)
    if skew is None:
        return
    ranks = [r for _, r in skew.clocks]
    worst = max((ahead for ahead, _ in skew.clocks), key=abs)
    attempts = math.ceil(skew.apart / _WARN_SHARE / skew.interval) + 1
    patient = ",".join(f"{name}={value}" for name, value in (skew.conf | {_ATTEMPTS: str(attempts)}).items())
    here, least = too_few_met(job) or (0, 0)
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: the clock is {abs(worst):.1f} s {'ahead of' if worst > 0 else 'behind'} that of "
        f"rank 0's host; the c10d rendezvous drops a node at {skew.tolerated} s"
        + (f", and the world has {here} of {least} nodes" if skew.dropped else ""),
        Fix(
            "Synchronise the clocks with NTP; until then raise the rendezvous's tolerance.",
            ("sudo chronyc makestep", ElasticAgent(job, ranks[0]).restarted({"rdzv-conf": patient})),
        ),
        severity="error" if skew.dropped else "warning" if skew.apart >= _WARN_SHARE * skew.tolerated else "info",
        confirmed=False,
        evidence=by_name((job.node_of(r).name, f"{ahead:+.1f} s") for ahead, r in skew.clocks),
    )


class _Skew(NamedTuple):
    """How far the clocks of c10d agents are apart, and how much of it their rendezvous tolerates."""

    clocks: list[tuple[float, RankFacts]]
    """By how many seconds the clock of each of these ranks is ahead of rank 0's host; over one, or under -1."""
    apart: float
    interval: int
    tolerated: int
    conf: dict[str, str]
    """--rdzv-conf."""
    dropped: bool
    """Whether the world lacks agents and the skew is large enough to drop them."""


@once
def _skew(job: Job) -> _Skew | None:
    clocks = [(job.process_of(r).clock_ahead_seconds or 0.0, r) for r in ranks_of(agents_of(job))]
    clocks = [(ahead, r) for ahead, r in clocks if abs(ahead) > _REPORTED_SECONDS]
    clocks = [(ahead, r) for ahead, r in clocks if ElasticAgent(job, r).rendezvous == "c10d"]
    if not clocks:
        return None
    options = ElasticAgent(job, clocks[0][1]).options.get("rdzv-conf", "").split(",")
    conf = {name.strip(): value.strip() for name, equals, value in (o.partition("=") for o in options) if equals}
    interval = integer(conf.get("keep_alive_interval")) or _INTERVAL_SECONDS
    tolerated = interval * (integer(conf.get(_ATTEMPTS)) or _USUAL_ATTEMPTS)
    ahead = [seconds for seconds, _ in clocks]
    apart = max(0.0, *ahead) - min(0.0, *ahead)
    return _Skew(clocks, apart, interval, tolerated, conf, apart >= tolerated and too_few_met(job) is not None)
