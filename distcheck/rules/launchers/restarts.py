"""The rule about nodes that join an elastic job of torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.agents import agents_met, agents_of
from distcheck.rules.wording import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("meeting", severity="warning")
def elastic_join_blocked(job: Job) -> Iterator[Outcome]:
    """A node that joins this elastic job ends it, because torchrun shares its store with the ranks.

    With the c10d rendezvous the agents share the store of the first attempt with their ranks and keep its address. An
    agent that joins later waits for that address, the others wait for the new agent, and after a minute the job ends
    with ``DistStoreError: wait timeout after 60000ms, keys: /torch.rendezvous.ID.1/torchelastic/role_info/0``. Seen
    with torch 2.13; torch has shared the store since pull request 128096.

    Found by TORCHELASTIC_USE_AGENT_STORE in an elastic c10d rendezvous whose world has fewer nodes than the maximum of
    ``--nnodes``, so that a node can join.

    Fix: Set the variable for torchrun on every node, or give --nnodes the number of nodes that take part.

        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; {again|torchrun --nnodes 1:4}
        {fixed|torchrun --nnodes 4}

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
            evidence={"TORCHELASTIC_USE_AGENT_STORE": "True", "--nnodes": f"{least}:{most}"},
            values={"again": [agent.restarted({})], "fixed": [agent.restarted({"nnodes": str(here)})]},
        )
