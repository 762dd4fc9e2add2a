"""Which ranks take a whole GPU and which a MIG device of one, and what the job mixes of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.cards import VARIABLE, seen
from distcheck.rules.vocabulary import majority, once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts import Gpu, Job, NodeFacts, RankFacts


class Taken(NamedTuple):
    """What a rank takes: a whole GPU, or a MIG device of it."""

    rank: RankFacts
    node: NodeFacts
    gpu: Gpu
    sliced: bool


@once
def taken(job: Job) -> tuple[Taken, ...]:
    """Return what the ranks take whose GPU is known."""
    found = []
    for node, devices in seen(job):
        for rank in job.ranks_on(node):
            name = rank.gpu
            for gpu in devices if name is not None else ():
                old_name = isinstance(gpu.uuid, str) and str(name).startswith(f"MIG-{gpu.uuid}/")
                if name == gpu.uuid or name in gpu.mig_uuids or old_name:
                    found.append(Taken(rank, node, gpu, sliced=name != gpu.uuid))
    return tuple(found)


class Mixture(NamedTuple):
    """A job of which some ranks take MIG devices and some whole GPUs."""

    odd: tuple[Taken, ...]
    """Those that are not as most nodes are; all, where neither is usual."""
    usual: bool
    """Whether one of both is: then `odd` is the other."""
    chosen: bool
    """Whether the odd ones' own CUDA_VISIBLE_DEVICES names what they take."""


@once
def mixture(job: Job) -> Mixture | None:
    """Return what of a job is in MIG mode and what not, None where all ranks are alike."""
    sides = {sliced: [t for t in taken(job) if t.sliced is sliced] for sliced in (True, False)}
    if not all(sides.values()):
        return None
    nodes = {sliced: {t.node.key for t in side} for sliced, side in sides.items()}
    everywhere = nodes[True] | nodes[False]
    voters = nodes if len(everywhere) > 1 else sides
    usual = majority(voters, of=len(everywhere) if len(everywhere) > 1 else len(taken(job)))
    odd = tuple(taken(job)) if usual is None else tuple(sides[not usual])
    chosen = any(t.rank.environment.get(VARIABLE, "").startswith(("MIG-", "GPU-")) for t in odd)
    return Mixture(odd, usual is not None, chosen)


def by_mixture(job: Job, ranks: Iterable[RankFacts]) -> bool:
    """Tell whether ranks share a MIG device because their GPUs are in MIG mode and those of most nodes are not."""
    mixed = mixture(job)
    if mixed is None or mixed.chosen:
        return False
    odd = {id(t.rank) for t in mixed.odd if t.sliced}
    return all(id(rank) in odd for rank in ranks)
