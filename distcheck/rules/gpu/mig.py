"""Rules about GPUs that are divided into MIG devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaView
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.ranges import numbered
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.assigned import Take
from distcheck.rules.gpu.mig_use import mixture, taken, undivided
from distcheck.rules.gpu.nodes import Value, each_value, name_of, not_seen
from distcheck.rules.gpu.sharing import SHARING_SINCE, sharing_allowed
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.wording import are, brief, found, grouped, listed, named, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ALLOWED = Fix("No action if intended and NCCL is 2.30 or later: NCCL_MULTI_RANK_GPU_ENABLE=1 allows it.")
_MOST = 16


@rule("gpu", scope="gpu", owner="admin")
def gpu_mig_without_device(job: Job) -> Iterator[Outcome]:
    """A GPU is in MIG mode but has no MIG device, so CUDA hides it and a rank gets no GPU.

    MIG mode survives jobs and reboots, so a previous user of the node may have left it on. CUDA shows only the
    remaining GPUs and renumbers them: the last rank of the node ends with ``CUDA error: invalid device ordinal``, a
    rank that sees only this GPU with ``No CUDA GPUs are available``.

    Found by comparing what CUDA_VISIBLE_DEVICES leaves of the node's GPUs with what it would leave without MIG mode;
    with ``distcheck node --gpus N`` by whether N remain. Silent where every rank gets a GPU without them. The node goes
    on the exclude list where CUDA itself has shown that the GPUs are missing.

    Fix: Turn MIG mode off once the GPU is unused, or create MIG devices for jobs that select them by UUID.

        sudo nvidia-smi -i {gpu} -mig 0
        nvidia-smi mig -i {gpu} -lgip

    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide
    """
    yield from not_seen(job)
    for node, gpus, without, usable, total in undivided(job):
        who = f"; {named(job, without)} {'gets' if len(without) == 1 else 'get'} no GPU" if without else ""
        yield Fault(
            brief(
                f"{node.name}: {listed(list(map(name_of, gpus)))} {are(gpus)} in MIG mode without a MIG device, so"
                f" CUDA shows {usable} of {count(total, 'GPU')}{who}",
                300,
            ),
            evidence={f"GPU {gpu.index}": "MIG mode, no MIG device" for gpu in gpus[:_MOST]}
            | {"gpus_seen": usable, "gpus_on_node": total, "ranks_on_node": len(job.ranks_on(node))},
            confirmed=all(isinstance(rank.cuda, CudaView) and not rank.cuda.error for rank in without),
            ranks=numbers_of(without),
            nodes=(node.name,),
            values={"gpu": (",".join(str(gpu.index) for gpu in gpus),)},
        )


@rule("gpu", severity="warning", scope="rank", of=each_value)
def gpu_cvd_mig(job: Job, own: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES names several MIG devices, but a process sees only the first.

    CUDA shows a process one MIG device, and no GPU beside it. You would see ``torch.cuda.device_count()`` of
    1, ``CUDA error: invalid device ordinal``, or ``device >= 0 && device < num_gpus INTERNAL ASSERT FAILED``.

    Found by reading the value as CUDA does: several MIG UUIDs, or indices that include a GPU in MIG mode. If several
    ranks end up on one MIG device because of it, gpu-duplicate reports that.

    Fix: Give each process one MIG device by its UUID, and take it as ``cuda:0``.

        export CUDA_VISIBLE_DEVICES={uuid}  # another one for each rank
        nvidia-smi -L

    See: https://github.com/pytorch/pytorch/issues/130181
    """
    value, ranks, shown = own.value, own.ranks, own.shown
    if value is None or own.fault is not None or not shown.stop:
        return None
    items = [item for item in value.split(",") if item.strip()]
    if len(items) < 2 or len(shown.uuids) != 1 or not shown.uuids[0].startswith("MIG-"):
        return None
    gpu = ranks[0].gpu
    if sum(rank.gpu == gpu for rank in job.ranks_on(job.node_of(ranks[0]))) > 1:
        return None  # gpu-duplicate reports it
    return Fault(
        f"CUDA_VISIBLE_DEVICES={brief(repr(value), 80)} names {len(items)} devices, but a process sees only one MIG "
        f"device: {gpu}",
        evidence={"CUDA_VISIBLE_DEVICES": value, "visible": gpu, "named": len(items)},
        values={"uuid": (str(gpu),)},
    )


@rule("gpu", scope="rank")
def gpu_mig_with_nccl(job: Job) -> Iterator[Outcome]:
    """Ranks run on MIG devices of the same GPU, and NCCL cannot connect them.

    Up to 2.29 NCCL identifies a rank's GPU by its PCI address, which all its MIG devices share: ``Duplicate GPU
    detected : rank 1 and rank 0 both on CUDA device 1b000``. From 2.30 on it distinguishes them where
    NCCL_MULTI_RANK_GPU_ENABLE=1 is set; this is experimental and works without peer-to-peer access and NVLink SHARP.
    Without the variable you would see ``Multiple Ranks are using the same GPU/Partition``.

    Found by the GPU to which each rank's MIG device belongs. An error; with NCCL_MULTI_RANK_GPU_ENABLE=1 on all of
    these ranks it is a warning if NCCL's version is unknown, and an info finding if it is 2.30 or later. Two ranks on
    one MIG device are gpu-duplicate.

    Fix: Turn MIG mode off, give each rank a MIG device of another GPU, or use Gloo.

        sudo nvidia-smi -mig 0
        nvidia-smi -L
        # in the script: torch.distributed.init_process_group("gloo")

    See: https://github.com/NVIDIA/nccl/issues/1716
    """
    yield from not_seen(job)
    parents = grouped((t for t in taken(job) if t.sliced), lambda t: t.gpu.uuid)
    shared = [users for users in parents.values() if len({t.rank.gpu for t in users}) > 1]
    for allowed, parts in grouped(shared, lambda users: all(sharing_allowed(job, t.rank) for t in users)).items():
        ranks, first = [t.rank for users in parts for t in users], parts[0]
        version = min(version_of(nccl_of(job, rank)) for rank in ranks)
        severity: Severity = "error"
        if allowed and (not version or version >= SHARING_SINCE):
            severity = "info" if version else "warning"
        more = f"; same for {count(len(parts) - 1, 'more GPU')}" if len(parts) > 1 else ""
        known = f"NCCL {'.'.join(map(str, version))}" if version else "NCCL version unknown"
        yield found(
            job,
            ranks,
            f"{named(job, [t.rank for t in first])} run on MIG devices of {name_of(first[0].gpu)}: "
            f"one GPU to NCCL before 2.30; {known}{more}",
            None if severity == "error" else _ALLOWED,
            severity=severity,
            evidence={f"rank {t.rank.placement.rank}": str(t.rank.gpu) for t in first[:_MOST]}
            | {"gpu": first[0].gpu.uuid if isinstance(first[0].gpu.uuid, str) else None, "nccl": known},
        )


@rule("gpu", scope=("job", "node"))
def gpu_mig_partial(job: Job) -> Iterator[Outcome]:
    """Some ranks of the job take a MIG device, and others a whole GPU.

    A MIG device has a part of the memory and of the processors. These ranks run out of memory or the others wait for
    them, and NCCL has no peer-to-peer access there. Mostly MIG mode was left on after another use of the node. Then
    CUDA shows one MIG device to all its ranks, and NCCL ends with ``Duplicate GPU detected``.

    Found by what the ranks take. The nodes that differ from the majority go on the exclude list, unless their own
    CUDA_VISIBLE_DEVICES names MIG devices. Without a majority, as with one node against one, no node is blamed.

    Fix: Turn MIG mode off once these GPUs are unused, or give every rank the same kind of MIG device.

        sudo nvidia-smi -mig 0
        nvidia-smi --query-gpu=index,mig.mode.current --format=csv
    """
    yield from not_seen(job)
    mixed = mixture(job)
    if mixed is None:
        return
    blamed, odd = mixed.usual and not mixed.chosen, mixed.odd
    sides = {_KINDS[sliced]: side for sliced, side in grouped(taken(job), lambda t: t.sliced).items()}
    message = "; ".join(f"{_places(side)} take {kind}" for kind, side in sides.items())
    if mixed.usual:
        kind, usual = _KINDS[odd[0].sliced], _KINDS[not odd[0].sliced]
        message = f"{_places(odd)} take {kind}; the other {len(sides[usual])} ranks take {usual}"
    yield found(
        job,
        [t.rank for t in odd],
        brief(message, 300),
        scope="node" if blamed else "job",
        owner="admin" if blamed else "unknown",
        confirmed=blamed,
        evidence={kind: _places(side, most=_MOST) for kind, side in sides.items()},
    )


_KINDS = {True: "MIG devices", False: "whole GPUs"}


def _places(parts: Iterable[Take], most: int = 3) -> str:
    """Name ranks and their nodes: ranks 16-23 (node3)."""
    parts = list(parts)
    nodes = list(dict.fromkeys(t.node.name for t in parts))
    numbers = numbers_of(t.rank for t in parts)
    who = numbered(numbers) if numbers else count(len(parts), "process")
    return f"{who} ({listed(nodes, most=most)})"
