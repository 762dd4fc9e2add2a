"""Rules about which GPU LOCAL_RANK is if CUDA, NVML and torch number GPUs differently."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, Severity
from distcheck.rules.gpu.cuda_view import LIBRARY, Shown, order_matters, shown, title
from distcheck.rules.gpu.nodes import not_seen, ranks_without_fault, seen
from distcheck.rules.gpu.nvml_errors import KERNEL_LOG
from distcheck.rules.wording import are, brief, by_name, found, grouped, listed, named, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.gpu import Gpu

_MOST = 8
"""Ranks that a finding's evidence shows."""


@rule("gpu", severity="warning", scope="rank")
def gpu_order_mismatch(job: Job) -> Iterator[Outcome]:
    """CUDA numbers a node's GPUs in another order than nvidia-smi and NVML do.

    CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; NVML orders GPUs by PCI bus. On a node with
    several GPU models ``cuda:0`` is then not nvidia-smi's GPU 0: jobs that share the node take each other's GPUs, and
    values read from NVML by index (torch.cuda.utilization, monitoring) belong to another GPU.

    Found by asking CUDA itself for the UUIDs in its order, with the rank's own variables. Where CUDA could not be
    asked, different models are only an info finding.

    Fix: Have CUDA number the GPUs by PCI bus, as nvidia-smi does, or name them by UUID in CUDA_VISIBLE_DEVICES.

        export CUDA_DEVICE_ORDER=PCI_BUS_ID

    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    """
    yield from not_seen(job)
    reordered = (s for s in shown(job) if s.reordered)
    for group in grouped(reordered, lambda s: (s.names(s.uuids), s.names(s.expected))).values():
        yield _other_order(job, group)
    unasked = [
        rank
        for node, devices in seen(job)
        if node.accelerator != "amd"  # HIP numbers as KFD does
        for rank in ranks_without_fault(job, node)
        if _was_not_asked(rank.cuda) and order_matters(rank, devices)
    ]
    if unasked:
        words = "the node has several GPU models and CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA may number the GPUs"
        yield found(
            job,
            unasked,
            f"{named(job, unasked)}: {words} differently from nvidia-smi, so the GPUs shown here for the ranks may be"
            " wrong",
            severity="info",
            evidence=_variable(unasked[0], "CUDA_DEVICE_ORDER"),
        )


def _was_not_asked(view: CudaView | Missing | None) -> bool:
    """Return whether CUDA was not asked; if it did not start, another rule reports it."""
    return not isinstance(view, CudaView) and (view is None or not view.reason.startswith(("CUDA", LIBRARY)))


def _variable(rank: RankFacts, name: str) -> dict[str, str]:
    return {name: rank.environment.get(name, "not set")}


def _other_order(job: Job, group: list[Shown]) -> Outcome:
    moved = [s for s in group if s.moved]
    first, ranks = group[0], [s.rank for s in moved or group]
    names = zip(first.names(first.uuids), first.names(first.expected), strict=False)
    place, real, meant = next((i, real, meant) for i, (real, meant) in enumerate(names) if real != meant)
    by_uuid = Fix("Name the GPUs by UUID.", (f"export CUDA_VISIBLE_DEVICES={quote(','.join(first.expected))}",))
    order = _variable(first.rank, "CUDA_DEVICE_ORDER")
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: CUDA numbers the GPUs differently from nvidia-smi: cuda:{place} is {real}, not {meant}",
        by_uuid if "PCI_BUS_ID" in order.values() else None,
        severity="warning" if moved else "info",
        evidence=order | _taken(job, moved or group),
    )


def _taken(job: Job, group: list[Shown]) -> dict[str, str]:
    """Return which GPUs ranks take, and which they would take by nvidia-smi's numbers."""
    return by_name((rank_name(job, s.rank), _really(s)) for s in group[:_MOST])


def _really(seen_by: Shown) -> str:
    local, devices = seen_by.rank.placement.local_rank, seen_by.devices
    words = f"{'no LOCAL_RANK' if local is None else f'LOCAL_RANK {local}'} takes {title(seen_by.rank.gpu, devices)}"
    return f"{words}, not {title(seen_by.taken, devices)}" if seen_by.moved else words


@rule("gpu", scope=("rank", "node"))
def gpu_hidden_from_cuda(job: Job) -> Iterator[Outcome]:
    """CUDA hides from a rank GPUs that NVML counts and CUDA_VISIBLE_DEVICES leaves.

    The numbers of the GPUs behind a hidden one shift, and the last ranks get none: ``CUDA error: invalid device
    ordinal``. An MPS daemon that was started with its own CUDA_VISIBLE_DEVICES hides the other GPUs from all its
    clients. CUDA also hides a GPU that the driver cannot start, or one too old for the driver's CUDA.

    Found by asking CUDA itself, with the rank's own variables. An error when a rank gets no GPU or shares one, a
    warning when a rank takes another one because of it, else an info finding.

    Fix: start nvidia-cuda-mps-control without CUDA_VISIBLE_DEVICES; drain a node whose driver hides a GPU.

    See: https://docs.nvidia.com/deploy/mps/index.html
    """
    yield from not_seen(job)
    odd = [s for s in shown(job) if not s.reordered and set(s.uuids) != set(s.expected)]
    for group in grouped(odd, lambda s: (s.node.key, s.uuids, s.withheld)).values():
        moved = [s for s in group if s.moved]
        yield _hidden(job, moved or group, _effect(moved))


def _effect(moved: list[Shown]) -> Severity:
    """Return the severity: an error if ranks get no GPU or share one, else a warning or info."""
    taken = [s.rank.gpu for s in moved]
    if None in taken:
        return "error"
    # With several MIG devices the driver chooses which one a process gets.
    if not moved or any(gpu.mig is True for s in moved for gpu in s.devices):
        return "info"
    return "error" if len(set(taken)) < len(taken) else "warning"


def _hidden(job: Job, group: list[Shown], severity: Severity) -> Outcome:
    first, ranks = group[0], [s.rank for s in group]
    gpus = first.node.gpus
    by_mps = isinstance(gpus, Gpus) and gpus.mps_daemon
    if first.withheld:
        hidden = f"{listed(first.names(first.withheld))} {are(first.withheld)} hidden"
        what = f"CUDA shows {len(first.uuids)} of {count(len(first.expected), 'GPU')}: {hidden}"
    else:
        more = [uuid for uuid in first.uuids if uuid not in first.expected]
        what = f"CUDA shows {listed(more)}, which NVML does not list"
    start_mps = Fix(
        "Start the MPS daemon without CUDA_VISIBLE_DEVICES.",
        ("echo quit | nvidia-cuda-mps-control", "env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d"),
    )
    drain = Fix(
        "Check the kernel log for why the driver does not start the GPU; drain the node.",
        (f"{KERNEL_LOG} | tail", f"scontrol update nodename={quote(first.node.name)} state=drain reason=gpu-hidden"),
    )
    return found(
        job,
        ranks,
        brief(f"{named(job, ranks)}: {what}", 300),
        start_mps if by_mps else drain,
        severity=severity,
        scope="rank" if by_mps else "node",
        owner="user" if by_mps else "admin",
        confirmed=by_mps or severity != "error",
        evidence={"cuda": listed(first.names(first.uuids), most=_MOST) or "none"}
        | _variable(first.rank, "CUDA_VISIBLE_DEVICES")
        | {"mps_daemon": "runs" if by_mps else "not seen"}
        | _taken(job, group),
    )


@rule("gpu", severity="info", scope="rank")
def gpu_barrier_guess(job: Job) -> Iterator[Outcome]:
    """If a script names no device, torch guesses it by the global rank, here wrongly.

    ``barrier()`` before the first collective, without ``device_id``, takes GPU RANK modulo the number of visible GPUs:
    ``using GPU 0 as device used by this process is currently unknown. This can potentially cause a hang``, or
    ``Guessing device ID based on global rank``; then a hang or ``Duplicate GPU detected``. The guess is right only
    where ranks are numbered node by node and every node uses all GPUs that it shows.

    Found by comparing that guess with the GPU that LOCAL_RANK selects. An info finding: scripts that name their device
    are not affected. Silent under Hugging Face accelerate, which names it.

    Fix: No action if the script names its device; otherwise pass the device to torch.

        # in the script: torch.cuda.set_device(local_rank)
        # in the script: init_process_group("nccl", device_id=torch.device("cuda", local_rank))

    See: https://github.com/pytorch/pytorch/pull/54991
    """
    yield from not_seen(job)
    wrong: list[tuple[RankFacts, int, int]] = []
    hidden = {job.node_of(s.rank).key for s in shown(job) if s.withheld}
    for node, _ in seen(job):
        for rank in job.ranks_on(node) if node.key not in hidden else ():
            visible_gpus, number = rank.visible_gpus, rank.placement.rank
            if not isinstance(visible_gpus, tuple) or number is None or rank.gpu not in visible_gpus:
                continue
            guess, real = number % len(visible_gpus), visible_gpus.index(rank.gpu)
            if guess != real and not _names_device(job, rank):
                wrong.append((rank, guess, real))
    if wrong:
        ranks, (first, guess, real) = [rank for rank, *_ in wrong], wrong[0]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: without device_id torch would guess cuda:{guess} for {rank_name(job, first)}, whose"
            f" GPU is cuda:{real}",
            evidence=by_name((rank_name(job, r), f"guess cuda:{g}, takes cuda:{t}") for r, g, t in wrong[:_MOST]),
        )


def _names_device(job: Job, rank: RankFacts) -> bool:
    """Return whether accelerate started the rank: it sets the device and passes it to every barrier."""
    agent = job.process_of(rank).agent
    return agent is not None and agent.program == "accelerate"


@rule("collectives", severity="warning", scope="rank")
def gpu_other_than_expected(job: Job) -> Iterator[Outcome]:
    """A rank's process worked on another GPU than its variables select.

    The GPU that this report shows for the rank is then not the one that it uses, and two ranks may use the same GPU.
    Either CUDA_VISIBLE_DEVICES was changed inside the process (a sitecustomize.py, a wrapper), or CUDA numbers the GPUs
    in another order than nvidia-smi.

    Found by the UUID of the device that torch used in the collectives (torch 2.5 and later).

    Fix: Set the variables in the shell that starts the job, and have CUDA number the GPUs by PCI bus.

        export CUDA_DEVICE_ORDER=PCI_BUS_ID
        echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L
    """
    other = [
        (devices, rank, run.gpu)
        for node, devices in seen(job)
        for rank in job.ranks_on(node)
        if (run := rank.run) is not None
        and run.gpu is not None
        and run.gpu != rank.gpu
        and not _same(run.gpu, rank.gpu, devices)
    ]
    if other:
        devices, first, used = other[0]
        ranks = [rank for _, rank, _ in other]
        lines = ((rank_name(job, r), f"used {title(u, d)}, expected {title(r.gpu, d)}") for d, r, u in other[:_MOST])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} worked on other GPUs than expected: {rank_name(job, first)} on"
            f" {title(used, devices)}, not on {title(first.gpu, devices)}",
            evidence=by_name(lines),
        )


def _same(used: str, expected: str | None, devices: tuple[Gpu, ...]) -> bool:
    """Return whether torch's UUID, which has no GPU or MIG prefix, is the expected device's."""
    if expected is None or not expected.startswith(("GPU-", "MIG-")):
        return True  # nothing to compare with
    parent = next((gpu.uuid for gpu in devices if expected in gpu.mig_uuids), None)
    names = [name for name in (expected, parent) if isinstance(name, str)]
    # The partitions of an AMD GPU have one unique id: GPU-a1b2000000000010/3.
    return any(_bare(name) == _bare(used) for name in names)


def _bare(name: str) -> str:
    return name.lower().partition("-")[2].partition("/")[0]
