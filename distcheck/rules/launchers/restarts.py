"""Rules about torchrun's restarts: what changed since the earlier attempt, and what the next one would end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.agents import (
    agents_met,
    by_agent,
    command,
    lacks_id,
    meets_here,
    nodes_meant,
    rendezvous,
    restarted,
    told,
)
from distcheck.rules.job.run_attempts import earlier, restart, this_attempt
from distcheck.rules.wording import found, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("meeting", severity="warning", scope="node", owner="unknown")
def elastic_nodes_changed(job: Job) -> Iterator[Outcome]:
    """A node left the job or joined it since torchrun's earlier attempt.

    If an agent ends or its node is lost, the ranks of the other nodes fail, and torchrun restarts them with the nodes
    that are left (elastic ``--nnodes 1:4``) or with another node in its place. If an agent starts later, torchrun ends
    the ranks and starts all of them again with it; this does not count towards ``--max-restarts``. In both cases ranks,
    world size and batch size may be others than before, and training continues from the last checkpoint.

    Found by comparing the agents with those of the last attempt in which all ranks met. The process of each agent's
    local rank 0 remembers it in the folder that torchrun makes for the agent's error files, so an attempt of another
    job is never taken for it. A node that left is a warning, a node that joined an info. A node whose agent was started
    again has done both.

    Fix: read the log of the agent on the node that left; start the agent there again, or replace the node.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    unread = [p for p in job.processes if isinstance(p.earlier_attempt, Missing)]
    last, now = earlier(job), this_attempt(job)
    if last is None and unread:
        nodes = tuple(dict.fromkeys(job.node_names[p.node] for p in unread))
        reasons = {p.earlier_attempt.reason for p in unread if isinstance(p.earlier_attempt, Missing)}
        yield NotChecked(nodes=nodes, reason=f"the earlier attempt: {min(reasons)}", required=False)
    elif last is None and restart(job):
        yield NotChecked(reason="no agent remembers an earlier attempt in which all ranks met", required=False)
    if last is None or now is None or now.agents.keys() == last.agents.keys():
        return
    left = [name for agent, name in last.agents.items() if agent not in now.agents]
    joined = [name for agent, name in now.agents.items() if agent not in last.agents]
    again = [name for name in left if name in joined]
    changes = [
        (again, f"the agent of {listed(again)} was started again"),
        (gone := [n for n in left if n not in again], f"{listed(gone)} left"),
        (new := [n for n in joined if n not in again], f"{listed(new)} joined"),
    ]
    changed = " and ".join(text for nodes, text in changes if nodes)
    first = job.ranks[0]
    yield Fault(
        severity="warning" if left else "info",
        confirmed=False,
        nodes=tuple(dict.fromkeys((*left, *joined))),
        message=f"since torchrun's attempt {last.number}, {changed}: {_nodes(len(last.agents))} then, "
        f"{len(now.agents)} now, in attempt {now.number}",
        fix=Fix(
            f"Read the log of torchrun on {listed(gone or again)} for why it ended. To add a node again, start "
            "torchrun there."
            if left
            else "No action if intended: a node that joins restarts the ranks of all nodes.",
            (f"{restarted(job, first, {})}  # on {listed(gone)}",) if gone else (),
        ),
        evidence={
            f"attempt {last.number}": ", ".join(last.agents.values()),
            f"attempt {now.number}": ", ".join(now.agents.values()),
            "agent": command(job, first),
        },
    )


@rule("meeting", severity="warning")
def elastic_join_blocked(job: Job) -> Iterator[Outcome]:
    """A node that joins this elastic job ends it, because torchrun shares its store with the ranks.

    With the c10d rendezvous the agents share the store of the first attempt with their ranks and keep its address. An
    agent that joins later waits for that address, the others wait for the new agent, and after a minute the job ends
    with ``DistStoreError: wait timeout after 60000ms, keys: /torch.rendezvous.ID.1/torchelastic/role_info/0``. Seen
    with torch 2.13; torch has shared the store since pull request 128096.

    Found by TORCHELASTIC_USE_AGENT_STORE in an elastic c10d rendezvous whose world has fewer nodes than the maximum of
    ``--nnodes``, so that a node can join.

    Fix: ``export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` for torchrun on every node.
    See: https://github.com/pytorch/pytorch/pull/128096, https://github.com/pytorch/pytorch/issues/135712
    """
    agents = [r for r in by_agent(job) if not r.placement.local_rank]
    ranks = [r for r in agents if r.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"]
    meant, here = {nodes_meant(job, r) for r in ranks}, agents_met(job)
    if here is None or len(meant) != 1:
        return
    first, (least, most) = ranks[0], meant.pop() or (0, 0)
    options = told(job, first) or {}
    can_join = rendezvous(options) == "c10d" and "standalone" not in options and not meets_here(options)
    if can_join and not lacks_id(job, first) and least <= here < most:
        yield found(
            job,
            [first],
            f"the world has {_nodes(here)} and may grow to {most}, but a node that joins ends the job",
            Fix(
                "Set the variable for torchrun on every node, or give --nnodes the number of nodes that take part.",
                (
                    f"export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; {restarted(job, first, {})}",
                    restarted(job, first, {"nnodes": str(here)}),
                ),
            ),
            evidence={"TORCHELASTIC_USE_AGENT_STORE": "True", "--nnodes": f"{least}:{most}", "GROUP_WORLD_SIZE": here},
        )


def _nodes(number: int) -> str:
    return f"{number} {'node' if number == 1 else 'nodes'}"
