"""Rules about MPI and DeepSpeed jobs: forwarded variables and the placement of ranks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.gpu import Gpus
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.claims import uses_gpus
from distcheck.rules.job.remedies import HAND_OVER, handed_over
from distcheck.rules.job.settings import MPI_LAUNCHERS, started_by_distcheck
from distcheck.rules.job.world import crowded, is_complete
from distcheck.rules.wording import are, found, grouped, listed, named, starter
from distcheck.selection.visible_devices import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.placement import Launcher
    from distcheck.facts.rank import RankFacts

# Variables that decide how NCCL, Gloo, UCX and libfabric connect, except those set on one rank on purpose.
_TRANSPORT = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TORCH_GLOO_", "UCX_", "FI_")
_ON_PURPOSE = ("NCCL_DEBUG", "NCCL_HOSTID", "UCX_LOG", "FI_LOG")


def _not_forwarded(job: Job, launchers: Collection[Launcher]) -> Iterator[tuple[Fault, list[str], RankFacts]]:
    """Yield a fault, without its fix, for variables that only some nodes have, with a rank that has them."""
    ranks = [r for r in job.ranks if r.placement.launcher in launchers and not started_by_distcheck(job, r)]
    by_node = grouped(ranks, lambda r: job.node_of(r).name)
    names = {n for r in ranks for n in r.environment if n.startswith(_TRANSPORT) and not n.startswith(_ON_PURPOSE)}
    parted: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name in sorted(names):
        held = {node: {name in r.environment for r in here} for node, here in by_node.items()}
        have = tuple(node for node, answers in held.items() if answers == {True})
        lack = tuple(node for node, answers in held.items() if answers == {False})
        if have and lack and len(have) + len(lack) == len(by_node):
            parted.setdefault((have, lack), []).append(name)
    for (have, lack), several in parted.items():
        without, source = [r for node in lack for r in by_node[node]], by_node[have[0]][0]
        message = f"{named(job, without)}: {listed(several)} {are(several)} not set, but set on {listed(have)}"
        values = {name: source.environment[name] for name in several}
        yield found(job, without, message, evidence=values), several, source


@rule("meeting", severity="warning")
def mpi_env_not_forwarded(job: Job) -> Iterator[Outcome]:
    """Network variables are set on some nodes of an MPI job but not on the others.

    Open MPI's mpirun starts remote ranks over ssh with a fresh environment and forwards only what ``-x`` names. Ranks
    on mpirun's own node have NCCL_SOCKET_IFNAME and similar variables. The others do not and select another network:
    NCCL hangs at its first collective, or reports ``Connect to ... failed : Connection refused``. Found by comparing
    the NCCL_*, GLOO_*, UCX_* and FI_* variables of the nodes. NCCL_DEBUG and other variables that are set on one rank
    on purpose are ignored.

    Fix: ``mpirun -x NCCL_SOCKET_IFNAME ...``, ``mpiexec -genvlist NCCL_SOCKET_IFNAME ...``.
    See: https://github.com/NVIDIA/nccl/issues/626
    """
    for fault, names, source in _not_forwarded(job, MPI_LAUNCHERS):
        launcher, values = source.placement.launcher, {name: shlex.quote(source.environment[name]) for name in names}
        text = f"Forward them to all nodes with {starter(source) or 'the launcher'}, or set them in a file that every "
        commands = tuple(f"export {name}={value}" for name, value in values.items())
        commands = (handed_over(launcher, **values),) if launcher in HAND_OVER else commands
        yield msgspec.structs.replace(fault, fix=Fix(f"{text}node reads.", commands))


@rule("meeting", severity="warning")
def deepspeed_env_not_forwarded(job: Job) -> Iterator[Outcome]:
    """Network variables are set on some nodes of a DeepSpeed job but not on the others.

    DeepSpeed starts ranks on the other nodes over ssh, which does not read .bashrc. It forwards variables with a few
    prefixes and those in ``~/.deepspeed_env``. A node without NCCL_SOCKET_IFNAME or UCX_NET_DEVICES selects another
    network and hangs. Found by comparing the NCCL_*, GLOO_*, UCX_* and FI_* variables of the nodes.

    Fix: Add them to the file that DeepSpeed forwards to all nodes.

        echo {line|NCCL_SOCKET_IFNAME=INTERFACE} >> ~/.deepspeed_env

    See: https://www.deepspeed.ai/getting-started/#multi-node-environment-variables
    """
    for fault, names, source in _not_forwarded(job, {"deepspeed"}):
        lines = tuple(shlex.quote(f"{name}={source.environment[name]}") for name in names)
        yield msgspec.structs.replace(fault, values={"line": lines})


def _gpus_on(node: NodeFacts) -> int | None:
    """Return how many GPUs CUDA would find on a node, None if unknown."""
    return len(visible(None, node.gpus.devices).uuids) if isinstance(node.gpus, Gpus) else None


@rule("gpu", severity="warning")
def deepspeed_hostfile_slots(job: Job) -> Iterator[Outcome]:
    """A node of a DeepSpeed job runs fewer ranks than the others and has unused GPUs.

    The hostfile sets how many ranks each node gets. ``node1 slots=8`` with ``node2 slots=2`` leaves six GPUs of
    node2 idle, and code that divides the world into nodes of equal size hangs or fails an assertion. Found, once all
    ranks joined, by counting each node's ranks and GPUs.

    Fix: Set ``slots`` of every line in DeepSpeed's hostfile to the number of GPUs of that node.

        sed -i {slots|'s/^node2 .*/node2 slots=8/'} hostfile

    See: https://github.com/huggingface/transformers/issues/21373
    """
    ours = [r for r in job.ranks if r.placement.launcher == "deepspeed" and not started_by_distcheck(job, r)]
    if not ours or not is_complete(job):
        return
    counts = {node.key: len(job.ranks_on(node)) for node in job.nodes}
    most = max(counts.values())
    short = [n for n in job.nodes if counts[n.key] < most and (_gpus_on(n) or 0) > counts[n.key]]
    if short:
        here = [f"{n.name} runs {counts[n.key]} for {count(_gpus_on(n) or 0, 'GPU')}" for n in short]
        slots = [shlex.quote(f"s/^{n.name} .*/{n.name} slots={_gpus_on(n)}/") for n in short[:8]]
        yield found(
            job,
            job.ranks_on(*short),
            f"{listed(here)}; other nodes run {count(most, 'rank')}",
            evidence={
                n.name: f"{count(counts[n.key], 'rank')}, GPUs: {_gpus_on(n) or 'unknown'}" for n in job.nodes[:16]
            },
            values={"slots": slots},
        )


@rule("meeting")
def mpi_slots_all_on_one_host(job: Job) -> Iterator[Outcome]:
    """All ranks of an MPI job run on one node, but the job has several nodes.

    A hostfile without slots, or ``-H a,b -np 16`` with more slots than intended, fills the first host before the
    second. If that node has more ranks than GPUs, scripts fail with ``CUDA error: invalid device ordinal`` or NCCL with
    ``Duplicate GPU detected``. Found by comparing the nodes that the scheduler assigned to the job with those on which
    the ranks run. Info only if the GPUs of that node suffice.

    Fix: Set the number of ranks per node.

        # add to mpirun: --map-by ppr:{each|8}:node
        # add to mpiexec: -ppn {each|8}

    See: https://github.com/NVIDIA/nccl-tests/issues/165
    """
    nodes = crowded(job)
    if nodes is None:
        return
    (node,) = job.nodes
    gpus, ranks = _gpus_on(node), len(job.ranks)
    short = gpus is not None and ranks > gpus and uses_gpus(job, job.ranks[0])
    has = f", which has {count(gpus or 0, 'GPU')}" if short else ""
    yield found(
        job,
        job.ranks,
        f"all {ranks} ranks run on {node.name}{has}; the job has {count(nodes, 'node')}",
        severity="error" if short else "info",
        values={"each": [str(-(-ranks // nodes))]},
    )
