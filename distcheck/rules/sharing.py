"""Why ranks share a GPU, and the finding that says so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from distcheck.finding import Finding, Fix
from distcheck.rules.cards import VARIABLE, card_of
from distcheck.rules.vocabulary import found, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts import Job, RankFacts

_SET_DEVICE = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before any other CUDA call'
_MOST = 8
"""Ranks that a finding's evidence shows."""


class Cause(NamedTuple):
    """Why ranks share GPUs: what they have in common decides what mends it."""

    kind: str
    values: tuple[str | None, ...]
    allowed: bool


def same_local_rank(job: Job, ranks: Sequence[RankFacts]) -> bool:
    """Tell whether ranks meet on a GPU because one launcher gave them one LOCAL_RANK: another rule's finding.

    Two torchruns on one node both count from 0, and that rule finds nothing wrong with it.
    """
    places = {
        (
            job.node_of(rank).key,
            rank.placement.node_rank if rank.placement.launcher == "torchrun" else None,
            rank.placement.local_rank,
        )
        for rank in ranks
    }
    return len(places) == 1 and ranks[0].placement.local_rank is not None


def cause_of(job: Job, ranks: Sequence[RankFacts]) -> Cause:
    """Return why these ranks share a GPU; GPUs that are shared for one cause make one finding."""
    values = tuple(sorted({rank.environment.get(VARIABLE) for rank in ranks}, key=lambda v: (v is None, v)))
    allowed = all(_enabled(rank.environment.get("NCCL_MULTI_RANK_GPU_ENABLE", "")) for rank in ranks)
    if len({job.node_of(rank).key for rank in ranks}) > 1:
        return Cause("handed out twice", (), allowed)
    if all((rank.gpu or "").startswith("MIG-") for rank in ranks):
        return Cause("MIG", values, allowed)
    if len({rank.placement.node_rank for rank in ranks if rank.placement.launcher == "torchrun"}) > 1:
        return Cause("two launchers", (), allowed)
    if values == (None,):
        return Cause("too few", (), allowed)
    return Cause("one value" if len(values) == 1 else "own values", values, allowed)


def _enabled(value: str) -> bool:
    """NCCL reads its numbers as C's strtoll does: what is no number is 0."""
    match = re.match(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", value)
    return match is not None and int(match[1], 16 if match[1][:2].lower() == "0x" else 10) != 0


def shared_gpus(job: Job, cause: Cause, gpus: list[list[RankFacts]]) -> Finding:
    """Return the finding about GPUs that are shared for one cause; `gpus` holds the users of each."""
    ranks, first = [rank for users in gpus for rank in users], gpus[0]
    card = card_of(job, first[0])
    where = f" ({card['pci']})" if "pci" in card else ""
    rest = len(gpus) - 1
    more = f"; {rest} more {'GPU is' if rest == 1 else 'GPUs are'} shared in this way" if rest else ""
    here = len(job.ranks_on(job.node_of(first[0])))
    both = "both" if len(first) == 2 else "all"
    many = f"#SBATCH --gpus-per-node={here}"
    fixes = {
        "handed out twice": Fix(
            "Two containers or nodes were given one GPU: give each its own.",
            ("docker run --gpus device=0 ...",),
        ),
        "MIG": Fix(
            "A process sees one MIG device only: give each rank its own by UUID.",
            (f"export {VARIABLE}=MIG-...  # another one for each rank", "nvidia-smi -L"),
        ),
        "two launchers": Fix(
            "Start one torchrun per node, or give each of them GPUs of its own.",
            (f"{VARIABLE}=0,1 torchrun ...", f"{VARIABLE}=2,3 torchrun ..."),
        ),
        "too few": Fix(
            "Start no more ranks than there are GPUs, or ask for more GPUs.",
            ("torchrun --nproc-per-node=gpu ...", many),
        ),
        "one value": Fix(
            "Let every rank see all GPUs of the node and take its own.",
            (f"unset {VARIABLE}", _SET_DEVICE, many),
        ),
        "own values": Fix(
            "Give all ranks of the node the same list and let each take its own GPU of it.",
            (f"unset {VARIABLE}", _SET_DEVICE),
        ),
    }
    common = f", with {VARIABLE}={cause.values[0]!r} on each" if cause.kind == "one value" else ""
    return found(
        job,
        ranks,
        f"{named(job, first)} {both} run on {first[0].gpu}{where}{common}{more}",
        Fix("Nothing, if it is meant: NCCL_MULTI_RANK_GPU_ENABLE=1 allows it.") if cause.allowed else fixes[cause.kind],
        severity="info" if cause.allowed else "error",
        owner="unknown" if cause.kind == "handed out twice" else "user",
        evidence={
            "gpu": card,
            "ranks": [
                {
                    "rank": rank.placement.rank,
                    "node": job.node_of(rank).name,
                    "local_rank": rank.placement.local_rank,
                    VARIABLE: rank.environment.get(VARIABLE),
                    "visible": rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else None,
                }
                for rank in first[:_MOST]
            ],
        },
    )
