"""The rule about torchrun's agents that disagree about the number of nodes, or have not all met."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.agents import ElasticAgent, agents_met, agents_of, outside, ranks_of, too_few_met
from distcheck.rules.wording import are, brief, by_name, found, grouped, listed, named, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from distcheck.facts.job import Job


@rule("environment", scope=("job", "node"))
def torchrun_nnodes_mismatch(job: Job) -> Iterator[Outcome]:
    """The agents have different ``--nnodes``, or their world lacks nodes.

    With the static rendezvous the agent with node rank 0 starts as soon as the number of agents in its own ``--nnodes``
    has joined. An agent beyond that number waits forever without a message. The c10d rendezvous starts with fewer nodes
    than an exact ``--nnodes`` if it drops one: the clock of that node is more than 15 seconds off, or it left. Without
    ``--nnodes`` every node on which srun starts torchrun trains alone.

    Found by comparing the agents' command lines between the nodes, and GROUP_WORLD_SIZE with ``--nnodes`` and with the
    nodes of the Slurm step. A node of the step that is in no world is named. Values that contradict the world are an
    error of the job. Fewer nodes than the minimum of ``--nnodes`` are an error that a retry may solve. Unused nodes of
    the step are a warning. Silent for ``--standalone``, with which each node is alone on purpose.

    Fix: Set --nnodes to the number of nodes that train together; no action if the others are idle on purpose.

        {run|torchrun --nnodes $SLURM_NNODES}
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
        yield _too_few(agents[0], *short, out)
        return
    if alone := [a for a in agents if a.alone_in_step and (agents_met(job) or 0) < a.step_nodes]:
        first, ranks = alone[0], ranks_of(alone)
        here = agents_met(job) or first.world or 0
        left = f"; {listed(out)} {are(out)} in no world" if out else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: torchrun's world has {count(here, 'node')} ({_given(first)}); Slurm's step has "
            f"{first.step_nodes}{left}",
            severity="warning",
            evidence={"agent": first.command},
            values={"run": [first.restarted({"nnodes": "$SLURM_NNODES"})]},
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
    values = "; ".join(f"{_given(group[0])} on {_on(job, group)}" for group in several.values())
    message = f"torchrun's agents have different numbers of nodes: {values}"
    message += "" if here is None else f"; their world has {count(here, 'node')}"
    message += f", and {listed(out)} of the Slurm step {are(out)} not in it" if out else ""
    nnodes = "$SLURM_NNODES" if "SLURM_JOB_ID" in first.rank.environment else str(max(most for _, most in several))
    return found(
        job,
        ranks_of(agents),
        message,
        Fix("Set the same --nnodes for every agent.", (first.restarted({"nnodes": nnodes}),)),
        severity="warning" if fits else "error",
        evidence=by_name((_on(job, group), group[0].command) for group in several.values()),
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
        {"agent": first.command},
        scope="node",
        owner="unknown",
        confirmed=False,
        nodes=out,
    )
