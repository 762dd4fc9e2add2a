"""Rules about which GPU each rank gets, and whether NVML can report it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.quantities import count
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.mig_use import undivided
from distcheck.rules.gpu.nodes import (
    Value,
    about_nodes,
    all_visible,
    card,
    each_value,
    equipped,
    gpu_nodes,
    identity,
    lacks_gpus,
    name_of,
    nodes_unread,
    not_seen,
    ranks_without_fault,
    seen,
    without_loss,
)
from distcheck.rules.gpu.nvml_errors import DRIVER_NOT_LOADED, LOST, STUB, error_code, remedy
from distcheck.rules.gpu.sharing import cause_of, explained, shared_gpus
from distcheck.rules.gpu.visibility import blind, no_gpu, not_named, wrong
from distcheck.rules.wording import brief, found, grouped, listed, named, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("gpu", scope=("rank", "node"))
def gpu_nvml_init_failed(job: Job) -> Iterator[Outcome]:
    """NVML, the library under nvidia-smi, fails or hangs on a node with NVIDIA GPUs.

    NCCL needs NVML too, and CUDA rarely works where NVML does not. You would see ``Failed to initialize
    NVML: Driver/library version mismatch``, ``Failed to initialize NVML: Unknown Error``, ``No CUDA GPUs are
    available``, or no message at all when a wedged GPU makes every call hang.

    Found by starting NVML in a child process with a deadline, and again while the collectives run; a failure only
    during the collectives is a warning. A version mismatch, an unloaded kernel module and a lost GPU are confirmed and
    put the node on the exclude list, and so does a driver library that is not installed or cannot be loaded where
    ``distcheck node --gpus N`` says that the node has GPUs. A hang and other errors may pass: retry elsewhere. If CUDA
    shows GPUs, the kernel module is loaded: then a ``libnvidia-ml.so.1`` that denies it is not the driver's, and the
    node is not blamed.

    Fix: the finding names the fix for the error: ``sudo reboot`` after a driver upgrade, ``sudo modprobe nvidia``,
    ``docker run --gpus all`` for a container that was started without GPUs or has lost them; CUDA's ``stubs`` folder
    out of LD_LIBRARY_PATH.

    See: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
    """
    failed = [n for n in gpu_nodes(job) if _refusal(n).startswith("NVML")]
    yield from not_seen(job, but=failed)
    for (reason, stub), nodes in grouped(failed, lambda n: (_refusal(n), _has_stub(job, n))).items():
        advice = STUB if stub else remedy(reason, job.asked.gpus)
        words = reason + ("; but CUDA shows GPUs, so libnvidia-ml.so.1 is not the driver's" if stub else "")
        words += f"; expected {count(job.asked.gpus, 'GPU')} ({job.asked.gpus_from})" if job.asked.gpus else ""
        yield about_nodes(
            job,
            nodes,
            Fault(
                words,
                advice.fix,
                {"nvml": reason},
                scope="rank" if stub else "node",
                owner=advice.owner,
                confirmed=advice.confirmed,
                values=_ranks(job, nodes),
            ),
        )
    unwatched = [(node, node.gpus.unwatched) for node in gpu_nodes(job) if isinstance(node.gpus, Gpus)]
    why = "GPUs not watched while the collectives ran"
    others = ((node, f"{why}: {reason}") for node, reason in unwatched if reason and not reason.startswith("NVML"))
    yield from nodes_unread(job, others, required=False)
    for node, reason in unwatched:
        if reason.startswith("NVML"):
            words, fix = f"while the collectives ran: {brief(reason)}", remedy(reason).fix
            fault = Fault(words, fix, {"nvml": reason}, "warning", "node", "admin", values=_ranks(job, [node]))
            yield about_nodes(job, [node], fault)


def _ranks(job: Job, nodes: list[NodeFacts]) -> dict[str, tuple[str, ...]]:
    """Return the largest number of ranks of a node, for a fix."""
    return {"ranks": (str(max(1, *(len(job.ranks_on(node)) for node in nodes))),)}


def _has_stub(job: Job, node: NodeFacts) -> bool:
    """Return whether NVML says that no kernel module is loaded where CUDA shows GPUs."""
    if error_code(_refusal(node)) != DRIVER_NOT_LOADED:
        return False
    return any(isinstance(rank.cuda, CudaView) and rank.cuda.devices for rank in job.ranks_on(node))


def _refusal(node: NodeFacts) -> str:
    """Return why NVML did not report a node's GPUs, or not all facts about them; '' if it did."""
    if isinstance(node.gpus, Missing):
        return node.gpus.reason
    return node.gpus.unread if node.gpus is not None else ""


@rule("gpu", scope="gpu", owner="admin")
def gpu_fell_off_bus(job: Job) -> Iterator[Outcome]:
    """A GPU of the node is lost: the driver or the PCI bus lists it and it cannot be reached.

    CUDA skips such a GPU, so that the numbers of the GPUs behind it shift, or refuses to start at all. You would
    see ``Unable to determine the device handle for GPU 0000:9B:00.0: Unknown Error``, ``CUDA error: invalid
    device ordinal`` on the last rank, or Xid 79 in the kernel log.

    Found by asking NVML for every GPU that it counts. Where NVML itself reports that the GPU is lost, needs a reset or
    has no power, the node goes on the exclude list; so it does where the PCI bus shows an AMD GPU of a model that KFD
    lists, and no driver is bound to it or amdgpu did not start it. With an unknown error it does not: retry elsewhere.

    Fix: Drain the node and reboot it; power-cycle it if the GPU does not come back; have it replaced if it recurs.

        scontrol update nodename={node} state=drain reason=gpu-lost
        sudo reboot

    See: https://docs.nvidia.com/deploy/xid-errors/
    """
    yield from not_seen(job)
    for node, devices in seen(job):
        lost = [gpu for gpu in devices if gpu.lost]
        alike = grouped(lost, lambda gpu: gpu.lost)
        parts = [f"{listed(list(map(name_of, gpus)))}: {brief(why)}" for why, gpus in alike.items()]
        if lost:
            yield Fault(
                f"{node.name}: {'; '.join(parts)}",
                evidence={f"GPU {gpu.index}": ", ".join((*card(gpu).values(), gpu.lost)) for gpu in lost},
                confirmed=any(error_code(gpu.lost) in LOST or gpu.lost.startswith("amdgpu") for gpu in lost),
                ranks=numbers_of(rank for rank in job.ranks_on(node) if rank.gpu is None),
                nodes=(node.name,),
                gpus=tuple(identity(node, gpu) for gpu in lost),
                values={"node": (quote(node.name),)},
            )


@rule("gpu", "torch-backend-differs", scope=("rank", "node"))
def gpu_none_visible(job: Job) -> Iterator[Outcome]:
    """A rank of an NCCL job has no GPU at all.

    You would see ``ProcessGroupNCCL is only supported with GPUs, no GPUs found!``, ``No CUDA GPUs are
    available`` or ``Found no NVIDIA driver on your system``.

    Found where ``--backend nccl`` meets a node without GPUs, and where NVML counts none (a container or a job step
    without GPUs, or device files that the user may not open) or KFD lists none. When other nodes of the job have GPUs,
    the finding suspects the node, not the job. Where NVML does not report the UUIDs that CUDA_VISIBLE_DEVICES names,
    CUDA itself decides. GPUs in MIG mode are gpu-mig-without-device, device files of AMD's GPUs gpu-kfd-denied.

    Fix: request GPUs: ``#SBATCH --gpus-per-node=8``, ``docker run --gpus all``; give the user access to
    ``/dev/nvidia0``; or run on CPUs with ``init_process_group("gloo")`` and ``--backend gloo``.
    """
    yield from not_seen(job)
    if "node" in job.asked.looks:
        return  # `distcheck node` has no ranks; gpu-fewer-than-needed reports missing GPUs there
    others = any(equipped(node) for node in job.nodes)
    bare = [n for n in job.nodes if lacks_gpus(job, n, others=others) and job.ranks_on(n)]
    without = {"no GPU found": bare}
    left_out = {u.node.key for u in undivided(job)}
    for node, devices in without_loss(job):
        if node.key in left_out:
            continue  # gpu-mig-without-device reports it
        if isinstance(node.gpus, Gpus) and not devices and node.gpus.unopened:
            continue  # gpu-kfd-denied reports it
        if not all_visible(job, node).uuids:
            driver = "amdgpu" if node.accelerator == "amd" else "NVML"
            why = f"{driver} works but counts no GPU" if not devices else "the job has no access to any of the GPUs"
            if not devices and isinstance(node.gpus, Gpus) and node.gpus.denied:
                why += f", because its user may not open {listed(node.gpus.denied)}"
            without.setdefault(why, []).append(node)
            continue
        yield from not_named(job, node)
        for (variable, value, shown), alike in grouped(
            blind(job, node), lambda v: (v.variable, v.value, v.shown)
        ).items():
            ranks = [rank for v in alike for rank in v.ranks]
            words = f"{variable}={brief(repr(value), 60)} shows no GPU: {brief(shown.stop, 120)}"
            message = f"{named(job, ranks)}: {words}"
            fix = Fix("Select another GPU.", (f"unset {variable}", "nvidia-smi -L"))
            yield found(job, ranks, message, fix, evidence={variable: value, "stopped_by": shown.stop})
    for why, nodes in without.items():
        if nodes:
            yield no_gpu(job, nodes, why, suspect=others)


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_empty(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES is set but empty, which hides every GPU.

    To CUDA an empty value is not the same as an unset one: it selects no GPU. You would see ``No CUDA GPUs
    are available`` or ``ProcessGroupNCCL is only supported with GPUs, no GPUs found!``. Wrapper scripts leave it behind
    (``export CUDA_VISIBLE_DEVICES=$GPUS`` with GPUS unset), and so does Slurm in a job that requested no GPU.

    Found by the rank's own variables.

    Fix: ``unset CUDA_VISIBLE_DEVICES``; under Slurm request GPUs: ``#SBATCH --gpus-per-node=8``.
    """
    return wrong(job, value, "empty")


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_minus_one(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES holds a negative number, which ends the list.

    ``-1`` hides all GPUs and ``0,-1,1`` shows only GPU 0. You would see ``No CUDA GPUs are available``, or
    ``CUDA error: invalid device ordinal`` on the ranks whose GPU comes after the negative number.

    Found by reading the value as CUDA and torch do. A warning when every rank still has its GPU, else an error.

    Fix: remove the negative number: ``export CUDA_VISIBLE_DEVICES=0,1`` or ``unset CUDA_VISIBLE_DEVICES``.
    """
    return wrong(job, value, "minus-one")


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_duplicate(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES names a GPU twice, so CUDA shows no GPU at all.

    ``0,0``, a repeated UUID, and two prefixes of one UUID all empty the list. You would see ``No CUDA GPUs
    are available``.

    Found by reading the value as CUDA and torch do, with NVML's UUIDs.

    Fix: name each GPU once: ``export CUDA_VISIBLE_DEVICES=0,1``.
    """
    return wrong(job, value, "duplicate")


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_bad_item(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES holds an item that CUDA reads differently than intended.

    CUDA reports nothing: it ends the list at the item or ignores the rest of the item. ``0 1`` and ``0;1`` show GPU 0
    alone, ``[0,1]`` and ``all`` show none, and ``00000000:07:00.0`` shows GPU 0. An index that the node does not have
    ends the list, and so does, in torch, a blank beside a UUID. You would see ``CUDA error: invalid device
    ordinal`` or ``No CUDA GPUs are available``.

    Found by reading the value as CUDA and torch do and comparing it with the GPUs that NVML counts. A warning when
    every rank still has a GPU (eight indices on a node with four GPUs and four ranks), else an error.

    Fix: separate indices or whole UUIDs by commas alone: ``export CUDA_VISIBLE_DEVICES=0,1``.
    """
    return wrong(job, value, "bad-item")


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_mixed_uuid_index(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES mixes indices with UUIDs; the list ends where the kind changes.

    ``GPU-6d1c...,1`` shows one GPU. You would see ``CUDA error: invalid device ordinal`` on the ranks whose
    GPU comes after the change.

    Found by reading the value as CUDA and torch do. A warning when every rank still has its GPU, else an error.

    Fix: use one kind: ``export CUDA_VISIBLE_DEVICES=0,1``.
    """
    return wrong(job, value, "mixed")


@rule("gpu", scope="rank", of=each_value)
def gpu_cvd_uuid_stale(job: Job, value: Value) -> Answer:
    """CUDA_VISIBLE_DEVICES names a UUID that no GPU of the node has, which ends the list.

    The UUID belongs to another node (one value exported to all nodes) or to a card that was replaced. You would
    see ``No CUDA GPUs are available`` on that node only.

    Found by comparing the UUIDs with those that NVML reports on the rank's own node.

    Fix: use indices, which work on every node: ``export CUDA_VISIBLE_DEVICES=0,1``; ``nvidia-smi -L`` lists UUIDs.
    """
    return wrong(job, value, "stale")


def _users(job: Job) -> Iterator[tuple[str, RankFacts]]:
    """Yield the GPUs that ranks take, each with the rank; a lost GPU explains why a node has fewer GPUs than ranks."""
    for node, _ in without_loss(job):
        for rank in ranks_without_fault(job, node):
            if rank.gpu is not None:
                # The substitute for an unreadable UUID is unique on one node only.
                yield rank.gpu if rank.gpu.startswith(("GPU-", "MIG-")) else f"{node.key} {rank.gpu}", rank


@rule("gpu", "slurm-same-gpu-for-all", scope="rank")
def gpu_duplicate(job: Job) -> Iterator[Outcome]:
    """Two ranks run on the same GPU.

    NCCL refuses it: ``Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000`` up to 2.29, ``Multiple
    Ranks are using the same GPU/Partition`` since 2.30; very old versions hang. Causes are one
    ``CUDA_VISIBLE_DEVICES=0`` exported to all ranks, ``--gres=gpu:1`` with several tasks, more ranks than GPUs, or one
    list per process combined with ``cuda:LOCAL_RANK``.

    Found by the UUID of the GPU that each rank will take, over all nodes. This also finds two containers that were
    given one GPU. NCCL_MULTI_RANK_GPU_ENABLE=1 on all of the ranks (NCCL 2.30 and later), or a different NCCL_HOSTID on
    each, allows sharing: then it is an info finding. Other rules report ranks that see several GPUs and have the same
    LOCAL_RANK, duplicate ranks, and wrong values of CUDA_VISIBLE_DEVICES.

    Fix: have every rank see all GPUs (``unset CUDA_VISIBLE_DEVICES``) and take its own before any other CUDA call:
    ``torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))``; start no more ranks than there are GPUs.
    """
    yield from not_seen(job)
    names = [gpu for gpu, _ in _users(job)]
    if len(set(names)) == len(names):
        return
    by_another = explained(job)
    by_gpu = grouped(_users(job), lambda use: use[0]).values()
    shared = [ranks for uses in by_gpu if len(ranks := [rank for _, rank in uses]) > 1 and not by_another(ranks)]
    for cause, gpus in grouped(shared, lambda ranks: cause_of(job, ranks)).items():
        yield shared_gpus(job, cause, gpus)
