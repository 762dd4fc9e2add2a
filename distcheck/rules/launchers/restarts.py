"""Rules about torchrun's restarts: what changed since the earlier attempt, and what the next one would end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.agents import ElasticAgent, agents_met, agents_of
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
    unread = {job.node_names[p.node]: a.reason for p in job.processes if isinstance(a := p.earlier_attempt, Missing)}
    last, now = earlier(job), this_attempt(job)
    if last is None and unread:
        reason = f"the earlier attempt: {min(unread.values())}"
        yield NotChecked(nodes=tuple(unread), reason=reason, required=False)
    elif last is None and restart(job):
        yield NotChecked(reason="no agent remembers an earlier attempt in which all ranks met", required=False)
    if last is None or now is None or now.agents.keys() == last.agents.keys():
        return
    left = [name for agent, name in last.agents.items() if agent not in now.agents]
    joined = [name for agent, name in now.agents.items() if agent not in last.agents]
    again = [name for name in left if name in joined]
    gone, new = [name for name in left if name not in again], [name for name in joined if name not in again]
    changes = [
        (again, f"the agent of {listed(again)} was started again"),
        (gone, f"{listed(gone)} left"),
        (new, f"{listed(new)} joined"),
    ]
    changed = " and ".join(words for names, words in changes if names)
    agent = ElasticAgent(job, job.ranks[0])
    text = "No action if intended: a node that joins restarts the ranks of all nodes."
    if left:
        text = f"Read the log of torchrun on {listed(gone or again)} for why it ended. To add a node again, start "
        text += "torchrun there."
    yield Fault(
        f"since torchrun's attempt {last.number}, {changed}: {count(len(last.agents), 'node')} then, "
        f"{len(now.agents)} now, in attempt {now.number}",
        Fix(text, (f"{agent.restarted({})}  # on {listed(gone)}",) if gone else ()),
        {
            f"attempt {last.number}": ", ".join(last.agents.values()),
            f"attempt {now.number}": ", ".join(now.agents.values()),
            "agent": agent.command,
        },
        "warning" if left else "info",
        confirmed=False,
        nodes=tuple(dict.fromkeys((*left, *joined))),
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
    share = [a for a in agents_of(job) if a.rank.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"]
    meant, here = {a.nnodes for a in share}, agents_met(job)
    if here is None or len(meant) != 1:
        return
    agent, (least, most) = share[0], meant.pop() or (0, 0)
    alone = agent.standalone or agent.lacks_id or is_here(agent.endpoint[0])
    if agent.rendezvous == "c10d" and not alone and least <= here < most:
        yield found(
            job,
            [agent.rank],
            f"the world has {count(here, 'node')} and may grow to {most}, but a node that joins ends the job",
            Fix(
                "Set the variable for torchrun on every node, or give --nnodes the number of nodes that take part.",
                (
                    f"export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; {agent.restarted({})}",
                    agent.restarted({"nnodes": str(here)}),
                ),
            ),
            evidence={"TORCHELASTIC_USE_AGENT_STORE": "True", "--nnodes": f"{least}:{most}", "GROUP_WORLD_SIZE": here},
        )
