"""Rules about AMD's cards beside each other: partitions, ranks that share one, firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.gpu.amd import amd_of
from distcheck.rules.gpu.readings import Reading, by_node, readings
from distcheck.rules.wording import brief, grouped, listed, majority, numbers_of
from distcheck.selection.gpu_variables import SELECTING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 16


@rule("gpu", scope=("job", "node"), owner="admin")
def gpu_partition_differs(job: Job) -> Iterator[Outcome]:
    """AMD GPUs of the job are partitioned differently: CPX among SPX, or NPS4 among NPS1.

    In CPX each of the card's eight compute dies is a GPU with its share of the memory, so that the numbers of the GPUs
    behind it shift, several ranks run on one card, and the slowest sets the pace. You would see ``HIP out of memory``
    on some ranks only, or an eighth of the speed. Mostly an earlier job left the mode behind.

    Found by comparing the compute and memory partition of all cards. The finding names the cards that differ from the
    majority, or all modes where there is none.

    Fix: Set one mode on all cards when the node is free.

        amd-smi static --partition
        sudo amd-smi set --compute-partition {mode|SPX}

    See: https://rocm.blogs.amd.com/software-tools-optimization/compute-memory-modes/README.html
    """
    modes = grouped(
        (r for r in readings(job) if amd_of(r).compute_partition),
        lambda r: f"{amd_of(r).compute_partition} {amd_of(r).memory_partition}".strip(),
    )
    if len(modes) < 2:
        return
    cards = {mode: {(r.node.key, r.gpu.pci) for r in alike} for mode, alike in modes.items()}
    usual = majority(cards)
    odd = {mode: alike for mode, alike in modes.items() if mode != usual}
    parts = [f"{_where(alike)} {'is' if len(cards[mode]) == 1 else 'are'} in {mode}" for mode, alike in odd.items()]
    most = f"; the other {len(cards[usual])} cards are in {usual}" if usual else ""
    every = [r for alike in odd.values() for r in alike]
    yield Fault(
        brief(f"{'; '.join(parts[:3])}{most}", 300),
        evidence={mode: count(len(there), "card") for mode, there in cards.items()},
        scope="node" if usual else "job",
        ranks=numbers_of(rank for r in every for rank in r.ranks),
        nodes=tuple(dict.fromkeys(r.node.name for r in every)),
        values={"mode": (usual.partition(" ")[0],)} if usual else {},
    )


@rule("gpu", severity="warning", scope="node")
def gpu_cards_unused(job: Job) -> Iterator[Outcome]:
    """Ranks share partitioned AMD cards of a node while other cards of it have no rank.

    In CPX each card is eight GPUs, which HIP numbers card by card: eight ranks with the local ranks 0 to 7 all run on
    the first card. You would see an eighth of the speed, and ``HIP out of memory`` with an eighth of the memory.

    Found by the cards of the GPUs that the ranks take, where there are more cards than they use, and more ranks. Where
    a variable such as ROCR_VISIBLE_DEVICES selects GPUs, a scheduler or the user has chosen, and nothing is reported.

    Fix: Set the cards to SPX when the node is free, or give each rank a GPU of another card.

        amd-smi static --partition
        sudo amd-smi set --compute-partition SPX
        export HIP_VISIBLE_DEVICES={devices|0,8,16,24,32,40,48,56}

    See: https://rocm.blogs.amd.com/software-tools-optimization/compute-memory-modes/README.html
    """
    for here in by_node(job).values():
        if any(not rank.environment.keys().isdisjoint(SELECTING) for rank in job.ranks_on(here[0].node)):
            continue
        cards = grouped((r for r in here if amd_of(r).compute_partition not in {"", "SPX"}), lambda r: str(r.gpu.pci))
        used = {card: numbers_of(rank for r in parts for rank in r.ranks) for card, parts in cards.items()}
        ranks = sorted(rank for own in used.values() for rank in own)
        shared = [card for card, own in used.items() if own]
        if len(shared) >= min(len(ranks), len(cards)):
            continue
        node = here[0].node.name
        yield Fault(
            f"{node}: ranks share {'card' if len(shared) == 1 else 'cards'} {listed(shared, most=2)} "
            f"({amd_of(cards[shared[0]][0]).compute_partition}); "
            f"{len(cards) - len(shared)} of {len(cards)} cards are unused",
            ranks=tuple(ranks),
            nodes=(node,),
            values={"devices": (",".join(str(min(r.gpu.index for r in parts)) for parts in cards.values()),)},
        )


def _where(alike: list[Reading]) -> str:
    """Name cards of several nodes: card 0000:69:00.0 of node2."""
    cards = {name: {str(r.gpu.pci) for r in here} for name, here in grouped(alike, lambda r: r.node.name).items()}
    each = (f"card {min(own)}" if len(own) == 1 else count(len(own), "card") for own in cards.values())
    return listed([f"{words} of {name}" for words, name in zip(each, cards, strict=True)], most=3)


@rule("gpu", severity="warning", scope=("job", "node"), owner="admin")
def gpu_firmware_differs(job: Job) -> Iterator[Outcome]:
    """AMD GPUs of one model have different firmware.

    Mostly an update is being rolled out, or a board was replaced. RCCL and the driver expect one state everywhere; you
    would see a GPU that is slower than its peers, or that alone hangs or resets.

    Found by comparing the VBIOS and each firmware that the driver loaded (system management, compute queues, security,
    RAS, SDMA) over all GPUs of a model. The finding names the GPUs that differ from the majority, or all of them where
    there is no majority.

    Fix: Install one release of the firmware on all nodes; until then request nodes that have the same one.

        amd-smi firmware
        amd-smi static --vbios

    See: https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html
    """
    for alike in grouped((r for r in readings(job) if amd_of(r).firmware), lambda r: r.gpu.name).values():
        kinds = _by_firmware(alike)
        if len(kinds) < 2:
            continue
        usual, common = majority(kinds), set.intersection(*map(set, kinds))
        own = {kind: [" ".join(item) for item in kind if item not in common] for kind in kinds}
        odd = {kind: there for kind, there in kinds.items() if kind != usual}
        parts = [f"{_where(there)}: {' and '.join(own[kind][:2])}" for kind, there in odd.items()]
        most = [f"most have {' and '.join(own[usual][:2])}"] if usual is not None else []
        every = [r for there in odd.values() for r in there]
        yield Fault(
            brief("; ".join([*parts[:3], *most]), 300),
            evidence={", ".join(own[kind]): _where(there) for kind, there in list(kinds.items())[:_MOST]},
            scope="job" if usual is None else "node",
            confirmed=usual is not None,
            ranks=numbers_of(rank for r in every for rank in r.ranks),
            nodes=tuple(dict.fromkeys(r.node.name for r in every)),
        )


def _by_firmware(alike: list[Reading]) -> dict[tuple[tuple[str, str], ...], list[Reading]]:
    """Group GPUs by the versions of the firmware that all of them report."""
    names = set.intersection(*(set(amd_of(r).firmware) for r in alike))
    return grouped(alike, lambda r: tuple(item for item in amd_of(r).firmware.items() if item[0] in names))
