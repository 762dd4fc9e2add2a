"""Why ranks share a GPU, and the finding about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.cuda_view import deprived
from distcheck.rules.gpu.mig_use import by_mixture, undivided
from distcheck.rules.gpu.nodes import VARIABLE, card_of, ranks_without_fault, without_loss
from distcheck.rules.job.agents import ElasticAgent
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.job.world import lonely
from distcheck.rules.wording import brief, by_name, found, named, rank_name
from distcheck.selection.nccl_settings import number_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_SET_DEVICE = '# in the script, before any other CUDA call: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
_MOST = 8
"""Ranks that a finding's evidence shows."""
SHARING_SINCE = (2, 30)
"""The first NCCL that allows ranks to share a GPU or the MIG devices of one; older ones report a duplicate GPU whatever
NCCL_MULTI_RANK_GPU_ENABLE says."""


class Cause(NamedTuple):
    """Why ranks share GPUs, which decides the fix."""

    kind: str
    values: tuple[str | None, ...]
    allowed: bool


def shown_one(job: Job) -> set[int]:
    """Return the ids of the ranks that see one GPU, which they take whatever LOCAL_RANK is.

    If they share it, CUDA_VISIBLE_DEVICES is the cause. Other rules report a value that CUDA misreads and a lost GPU.
    """
    return {
        id(rank)
        for node, _ in without_loss(job)
        for rank in ranks_without_fault(job, node)
        if isinstance(rank.visible_gpus, tuple) and len(rank.visible_gpus) == 1
    }


def explained(job: Job) -> Callable[[Sequence[RankFacts]], bool]:
    """Return a function that tells whether another rule explains why ranks share a GPU.

    The causes are: they claim the same rank, each runs as a world of its own, their GPUs are in MIG mode unlike those
    of most nodes, CUDA or MIG mode hides the GPU of one of them, or one launcher gave them the same LOCAL_RANK and they
    see other GPUs too. Two torchruns on one node both count from 0; that is no fault.
    """
    hidden = deprived(job) | {id(rank) for node in undivided(job) for rank in node.without}
    alone, one = {id(rank) for rank in lonely(job)}, shown_one(job)

    def by_another(ranks: Sequence[RankFacts]) -> bool:
        numbers = {rank.placement.rank for rank in ranks}
        if None not in numbers and len(numbers) == 1:
            return True
        if all(id(rank) in alone for rank in ranks) or by_mixture(job, ranks):
            return True
        if any(id(rank) in hidden for rank in ranks):
            return True
        return _same_local_rank(job, ranks) and not any(id(rank) in one for rank in ranks)

    return by_another


def _same_local_rank(job: Job, ranks: Sequence[RankFacts]) -> bool:
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
    """Return why these ranks share a GPU; GPUs shared for one cause make one finding."""
    values = tuple(sorted({rank.environment.get(VARIABLE) for rank in ranks}, key=lambda v: (v is None, v)))
    allowed = all(sharing_allowed(job, rank) and _knows_sharing(job, rank) for rank in ranks)
    allowed = allowed or _on_hosts_of_their_own(job, ranks)
    if len({job.node_of(rank).key for rank in ranks}) > 1:
        return Cause("handed out twice", (), allowed)
    if all((rank.gpu or "").startswith("MIG-") for rank in ranks):
        return Cause("MIG", values, allowed)
    if len({rank.placement.node_rank for rank in ranks if rank.placement.launcher == "torchrun"}) > 1:
        return Cause("two launchers", (), allowed)
    if values == (None,):
        return Cause("too few", (), allowed)
    return Cause("one value" if len(values) == 1 else "own values", values, allowed)


def sharing_allowed(job: Job, rank: RankFacts) -> bool:
    """Return whether NCCL_MULTI_RANK_GPU_ENABLE allows sharing."""
    return number_of(job, rank, "NCCL_MULTI_RANK_GPU_ENABLE", 0) != 0


def _knows_sharing(job: Job, rank: RankFacts) -> bool:
    """Return whether the rank's NCCL reads that variable, as far as is known."""
    return (version_of(nccl_of(job, rank)) or SHARING_SINCE) >= SHARING_SINCE


def _on_hosts_of_their_own(job: Job, ranks: Sequence[RankFacts]) -> bool:
    """Return whether NCCL_HOSTID places each rank on its own host.

    NCCL looks for shared GPUs on one host only.

    Source: NVIDIA/nccl, src/misc/utils.cc (getHostHash); the variable exists since 2.5.6.
    """
    hosts = {value_of(job, rank, "NCCL_HOSTID") for rank in ranks}
    return len(hosts) == len(ranks) > 1 and "" not in hosts


def _selection(job: Job, rank: RankFacts) -> str:
    """Return what selects a rank's GPU: node1, LOCAL_RANK 0, CUDA_VISIBLE_DEVICES='3', 1 GPU."""
    local = "no LOCAL_RANK" if rank.placement.local_rank is None else f"LOCAL_RANK {rank.placement.local_rank}"
    value = rank.environment.get(VARIABLE)
    variable = f"no {VARIABLE}" if value is None else f"{VARIABLE}={value!r}"
    count = len(rank.visible_gpus) if isinstance(rank.visible_gpus, tuple) else 0
    return f"{job.node_of(rank).name}, {local}, {variable}, sees {count} {'GPU' if count == 1 else 'GPUs'}"


_OWN_MIG_DEVICE = (
    f"export {VARIABLE}=$(nvidia-smi -L | grep -o 'MIG-[0-9a-f-]*' | sed -n $((${{LOCAL_RANK:?}} + 1))p)  # in each"
)


def shared_gpus(job: Job, cause: Cause, gpus: list[list[RankFacts]]) -> Fault:
    """Return the finding about GPUs shared for one cause; `gpus` holds the users of each."""
    ranks, first = [rank for users in gpus for rank in users], gpus[0]
    card = card_of(job, first[0])
    where = f" ({card['pci']})" if "pci" in card else ""
    rest = len(gpus) - 1
    more = f"; same for {rest} more {'GPU' if rest == 1 else 'GPUs'}" if rest else ""
    here = len(job.ranks_on(job.node_of(first[0])))
    both = "both" if len(first) == 2 else "all"
    many = f"#SBATCH --gpus-per-node={here}"
    fixes = {
        "handed out twice": Fix(
            "Two containers or nodes were given the same GPU: give each its own.",
            ("# add to docker run: --gpus device=0  # another one for each container",),
        ),
        "MIG": Fix(
            "A process sees only one MIG device: give each rank its own by UUID.",
            (_OWN_MIG_DEVICE, "nvidia-smi -L"),
        ),
        "two launchers": Fix(
            "Start one torchrun per node, or give each torchrun its own GPUs.",
            tuple(
                f"export {VARIABLE}={','.join(map(str, half))}  # before the {which} torchrun"
                for which, half in (("first", range(here // 2)), ("second", range(here // 2, here)))
            ),
        ),
        "too few": Fix(
            "Start no more ranks than there are GPUs, or request more GPUs.",
            (ElasticAgent(job, first[0]).restarted({"nproc-per-node": "gpu"}), many),
        ),
        "one value": Fix(
            "Have every rank see all GPUs of the node and take its own.",
            (f"unset {VARIABLE}", _SET_DEVICE, many),
        ),
        "own values": Fix(
            "Give all ranks of the node the same list, and have each rank take its own GPU from it.",
            (f"unset {VARIABLE}", _SET_DEVICE),
        ),
    }
    common = f", with {VARIABLE}={brief(repr(cause.values[0]), 60)} on each" if cause.kind == "one value" else ""
    return found(
        job,
        ranks,
        f"{named(job, first)} {both} run on {first[0].gpu}{where}{common}{more}",
        Fix("No action if intended: NCCL_MULTI_RANK_GPU_ENABLE=1 or an NCCL_HOSTID for each rank allows it.")
        if cause.allowed
        else fixes[cause.kind],
        severity="info" if cause.allowed else "error",
        owner="unknown" if cause.kind == "handed out twice" else "user",
        evidence=card | by_name((rank_name(job, rank), _selection(job, rank)) for rank in first[:_MOST]),
    )
