"""Rules about the launch command that the gate stands in front of: what its nodes state together."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.launches import Launch, all_launches
from distcheck.rules.wording import found, grouped, listed, once
from distcheck.selection.launch_commands import OPTIONS, VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts


@once
def launches(job: Job) -> list[Launch]:
    """Return those whose commands start the ranks of one of several nodes."""
    return [each for each in all_launches(job) if each.stated.nodes > 1]


@rule("environment", "port-beyond-65535")
def command_refused(job: Job) -> Iterator[Outcome]:
    """A launch command has options that it will refuse: a port beyond 65535, ``--nproc-per-node two``.

    It ends at once on this node, with a message of its own (``torchrun: error: unrecognized arguments: --nprocs``) or a
    traceback such as ``OverflowError: connect(): port must be 0-65535`` or ``ValueError: Unsupported nproc_per_node
    value``, while the other nodes wait. Nothing of it can be tested with other nodes.

    Found by reading COMMAND's options, variables and files as the launcher reads them: also ranks that its nodes cannot
    share, more ranks than slots, a configuration file that does not exist, and ``--nproc-per-node gpu`` on a node
    without GPUs. If torchrun, accelerate or deepspeed may not know an option, its own parser is asked.

    Fix: Correct the option on all nodes.

        # in COMMAND, on all nodes: {option|--master-port 29500}

    See: https://github.com/huggingface/accelerate/issues/647
    """
    for each in all_launches(job):
        if not (launch := each.stated).refused:
            continue
        fix = None if launch.remedy.startswith("-") else Fix("Correct it in COMMAND, on all nodes.")
        if launch.remedy and fix:
            fix = Fix("Correct the variable on all nodes.", (f"export {launch.remedy}",))
        said = f"{each.place}: {launch.by} will refuse its words: {launch.refused}"
        yield found(job, each.ranks, said, fix, values={"option": [launch.remedy]})


def _ranks(several: Sequence[Launch]) -> list[RankFacts]:
    return [rank for each in several for rank in each.ranks]


@rule("meeting")
def command_node_rank_duplicate(job: Job) -> Iterator[Outcome]:
    """The launch commands of two nodes name the same node rank.

    Both start the same ranks. torchrun then waits for the node that nobody is, or ends with ``EADDRINUSE``, and no
    script starts. It happens where a line is copied to the next node unchanged, or a variable is not set there.

    Found by the node rank in COMMAND's arguments and environment on each node.

    Fix: Give every node its own number, from 0; node 0 is the one at the master address.

        # in COMMAND, on each node its own number: {option|--node-rank} 1

    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    own = [each for each in launches(job) if each.stated.rendezvous is None]  # the others' numbers are distcheck's
    for number, several in grouped(own, lambda each: each.stated.node_rank).items():
        if len(several) < 2 or number is None:
            continue
        places, place = [each.place for each in several], quote(several[-1].node.name)
        taken = {each.stated.node_rank for each in own}
        free = next((n for n in range(several[0].stated.nodes) if n not in taken), None)
        first = several[0].stated
        names = OPTIONS.get(first.by, VARIABLES)
        option = names.node_rank.rstrip("=")
        fix = Fix(
            f"Give every node its own number, from 0 to {first.nodes - 1}; node 0 is the one at {first.master_addr}.",
            () if free is None else (f"# in COMMAND on {place}: {names.set(first, {'NODE_RANK': free})}",),
        )
        yield found(
            job,
            _ranks(several),
            f"{listed(places)} are {'both' if len(places) == 2 else 'all'} node {number}: {first.by}'s {option} is "
            f"{number} on each",
            fix,
            evidence={each.place: f"{option} {number}" for each in several},
        )


@rule("meeting")
def command_node_rank_beyond(job: Job) -> Iterator[Outcome]:
    """A launch command's node rank is not below its number of nodes.

    Node ranks count from 0. torchrun then waits for a node 0 that nobody is, and starts nothing.

    Found by the node rank and the number of nodes in COMMAND's arguments and environment.

    Fix: number the nodes from 0: ``--node-rank 0`` on the first.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for each in launches(job):
        stated = each.stated
        if stated.node_rank is None or stated.node_rank < stated.nodes:
            continue
        names = OPTIONS.get(stated.by, VARIABLES)
        option, last = names.node_rank.rstrip("="), stated.nodes - 1
        yield found(
            job,
            each.ranks,
            f"{each.place}: {stated.by}'s {option} is {stated.node_rank}; of {last + 1} nodes the last one is {last}",
            Fix(f"Number the nodes from 0 to {last}.", (f"# in COMMAND: {names.set(stated, {'NODE_RANK': last})}",)),
            evidence={option: stated.node_rank, "nodes": stated.nodes},
        )


@rule("meeting")
def command_endpoint_local(job: Job) -> Iterator[Outcome]:
    """The launch command of several nodes names an endpoint at which each node finds only itself.

    With ``localhost`` every agent waits at its own node for the others: ``RendezvousTimeoutError`` after ten minutes.

    Found by a loopback address, or localhost, in COMMAND's endpoint or master address while it starts several nodes.

    Fix: Name one node of the job, the same on all nodes.

        # in COMMAND, on all nodes: {option|--rdzv-endpoint node1:29400}

    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    local = [each for each in launches(job) if each.local]
    if local and len(local) == local[0].stated.nodes and len({each.node.key for each in local}) == 1:
        return  # all agents are on one machine
    for by, several in grouped(local, lambda each: each.stated.by).items():
        first = several[0].stated
        names = OPTIONS.get(by, VARIABLES)
        yield found(
            job,
            _ranks(several),
            f"{by}'s {first.nodes} nodes are to meet at {first.master_addr}, where every node finds only itself",
            evidence={
                each.place: names.set(each.stated, {"MASTER_ADDR": each.stated.master_addr}) for each in several[:8]
            },
            values={"option": (names.set(first, {"MASTER_ADDR": quote(several[0].node.name)}),)},
        )


@rule("peers")
def command_endpoint_unserved(job: Job) -> Iterator[Outcome]:
    """No agent of torchrun will host the store of the rendezvous, or several will.

    Each agent decides by itself: it hosts the store if the endpoint is its own host name, or has one of the addresses
    to which its own name resolves. With the address of a VPN or of a second adapter, and a name that leads to
    127.0.1.1, no agent does, and all wait: ``RendezvousConnectionError: The connection to the C10d store has failed``.

    Found by working that out on each node as torchrun does, for ``--rdzv-backend c10d``.

    Fix: Have the agent at the endpoint host the store, or use a static master.

        # add to COMMAND on {host|the endpoint's node} only: --rdzv-conf is_host=1

    See: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
    """
    meeting = [each for each in launches(job) if each.stated.rendezvous is not None]
    if not meeting or len(meeting) != meeting[0].stated.nodes:
        return
    first, answers = meeting[0].stated, [_hosts(each) for each in meeting]
    who = [each for each, hosts in zip(meeting, answers, strict=True) if hosts]
    # Of several agents on one machine, one hosts the store and the others connect to it.
    if meeting[0].local or None in answers or len({each.node.key for each in who}) == 1:
        return
    at = f"{first.master_addr}:{first.master_port}"
    own = {
        each.node.name: f"its own name {each.node.hostname} is {listed(_own_addresses(each.node) or ['unknown'])}"
        for each in meeting[:8]
    }
    if not who:
        said = f"no agent will host the store at {at}: {first.master_addr} is the address of no node's own name"
    else:
        said = f"{listed([each.node.name for each in who])} will each host a store for {at}, and wait at its own"
    at_it = [each.node.name for each in meeting if not _addresses(each.node).isdisjoint(_resolved(meeting[0]))]
    yield found(job, _ranks(who or meeting), said, evidence=own, values={"host": [quote(at_it[0])]} if at_it else {})


def _hosts(each: Launch) -> bool | None:
    """Return whether this node's agent will host the store; None if that is unknown.

    Source: torch/distributed/elastic/rendezvous/utils.py, _matches_machine_hostname.
    """
    if each.stated.hosts_store is not None:
        return each.stated.hosts_store
    if each.stated.master_addr == each.node.hostname:
        return True
    own = _own_addresses(each.node)
    return None if own is None else not _resolved(each).isdisjoint(own)


def _own_addresses(node: NodeFacts) -> list[str] | None:
    name = node.network.own_name if node.network is not None else None
    return list(name.addresses) if isinstance(name, Resolution) else None


def _resolved(each: Launch) -> set[str]:
    found = each.process.master_resolution
    return {each.stated.master_addr, *(found.addresses if isinstance(found, Resolution) else ())}


def _addresses(node: NodeFacts) -> set[str]:
    return set() if isinstance(node.interfaces, Missing) else {i.address for i in node.interfaces}
