"""Why ranks share a GPU, and the finding about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.quantities import count
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.assigned import takes_by_node
from distcheck.rules.gpu.cuda_view import deprived
from distcheck.rules.gpu.mig_use import by_mixture, undivided
from distcheck.rules.gpu.nodes import card, ranks_without_fault, selection, without_loss
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
    variable: str = ""
    """The one that selects their GPUs."""


def shown_one(job: Job) -> set[int]:
    """Return the ids of the ranks that see one GPU, which they take whatever LOCAL_RANK is.

    If they share it, the variable that selects it is the cause. Other rules report a wrong value and a lost GPU.
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
        numbers, ids = {rank.placement.rank for rank in ranks}, {id(rank) for rank in ranks}
        if (len(numbers) == 1 and None not in numbers) or ids <= alone or by_mixture(job, ranks) or ids & hidden:
            return True
        return _same_local_rank(job, ranks) and not ids & one

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
    values = tuple(sorted({selection(job, rank)[1] for rank in ranks}, key=lambda v: (v is None, v)))
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
    return Cause("one value" if len(values) == 1 else "own values", values, allowed, selection(job, ranks[0])[0])


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
    name, value = selection(job, rank)
    variable = f"no {name}" if value is None else f"{name}={value!r}"
    seen = len(rank.visible_gpus) if isinstance(rank.visible_gpus, tuple) else 0
    return f"{job.node_of(rank).name}, {local}, {variable}, sees {count(seen, 'GPU')}"


_NTH_MIG_DEVICE = "nvidia-smi -L | grep -o 'MIG-[0-9a-f-]*' | sed -n $((${LOCAL_RANK:?} + 1))p"


def shared_gpus(job: Job, cause: Cause, gpus: list[list[RankFacts]]) -> Fault:
    """Return the finding about GPUs shared for one cause; `gpus` holds the users of each."""
    ranks, first = [rank for users in gpus for rank in users], gpus[0]
    takes = takes_by_node(job).get(job.node_of(first[0]).key, ())
    own = next((card(take.gpu) for take in takes if take.rank is first[0]), {}) | {"uuid": first[0].gpu}
    where = f" ({own['pci']})" if "pci" in own else ""
    more = f"; same for {count(len(gpus) - 1, 'more GPU')}" if len(gpus) > 1 else ""
    common = ""
    if cause.kind == "one value":
        common = f", with {cause.variable}={brief(repr(cause.values[0]), 60)} on each"
    return found(
        job,
        ranks,
        f"{named(job, first)} {'both' if len(first) == 2 else 'all'} run on {first[0].gpu}{where}{common}{more}",
        _ALLOWED if cause.allowed else _fix(job, cause, first[0]),
        severity="info" if cause.allowed else "error",
        owner="unknown" if cause.kind == "handed out twice" else "user",
        evidence=own | by_name((rank_name(job, rank), _selection(job, rank)) for rank in first[:_MOST]),
    )


_ALLOWED = Fix("No action if intended: NCCL_MULTI_RANK_GPU_ENABLE=1 or an NCCL_HOSTID for each rank allows it.")


def _fix(job: Job, cause: Cause, first: RankFacts) -> Fix:
    here = len(job.ranks_on(job.node_of(first)))
    many = f"#SBATCH --gpus-per-node={here}"
    if cause.kind == "handed out twice":
        return Fix(
            "Two containers or nodes were given the same GPU: give each its own.",
            ("# add to docker run: --gpus device=0  # another one for each container",),
        )
    if cause.kind == "MIG":
        return Fix(
            "A process sees only one MIG device: give each rank its own by UUID.",
            (f"export CUDA_VISIBLE_DEVICES=$({_NTH_MIG_DEVICE})  # in each", "nvidia-smi -L"),
        )
    if cause.kind == "two launchers":
        halves = (",".join(map(str, half)) for half in (range(here // 2), range(here // 2, here)))
        commands = (
            f"export {selection(job, first)[0]}={half}  # before the {which} torchrun"
            for which, half in zip(("first", "second"), halves, strict=True)
        )
        return Fix("Start one torchrun per node, or give each torchrun its own GPUs.", tuple(commands))
    if cause.kind == "too few":
        return Fix(
            "Start no more ranks than there are GPUs, or request more GPUs.",
            (ElasticAgent(job, first).restarted({"nproc-per-node": "gpu"}), many),
        )
    unset = f"unset {cause.variable}"
    if cause.kind == "one value":
        return Fix("Have every rank see all GPUs of the node and take its own.", (unset, _SET_DEVICE, many))
    return Fix(
        "Give all ranks of the node the same list, and have each rank take its own GPU from it.", (unset, _SET_DEVICE)
    )
