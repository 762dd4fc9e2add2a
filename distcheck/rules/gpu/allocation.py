"""Rules about GPUs that the scheduler did not give to the job."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.pci import Pci
from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.gpu.nodes import all_visible, without_loss
from distcheck.rules.wording import found, grouped, listed, named
from distcheck.selection.nodelist import first_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts

_INDEX = re.compile(r"[0-9]{1,5}")
_SLURM, _KUBERNETES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"), "NVIDIA_VISIBLE_DEVICES"


class _Given(NamedTuple):
    """What the scheduler gave to the job on a node."""

    source: str
    """The variable that says so."""
    gpus: tuple[str, ...]
    """Their numbers or UUIDs."""
    certain: bool
    """Whether only the scheduler can have set it."""


@rule("gpu", scope="rank")
def gpu_outside_allocation(job: Job) -> Iterator[Outcome]:
    """A rank uses a GPU that the scheduler did not give to the job.

    Where the scheduler does not hide the other GPUs of a node, CUDA_VISIBLE_DEVICES alone keeps the jobs apart. A
    script that sets or unsets it takes GPUs of another job: both get ``CUDA out of memory``, or run at half of the
    speed.

    Found by the GPU of each rank and Slurm's SLURM_STEP_GPUS and SLURM_JOB_GPUS, Kubernetes' NVIDIA_VISIBLE_DEVICES, or
    the CUDA_VISIBLE_DEVICES with which the job's first process began under PBS and LSF; that may have come from the
    shell that submitted the job, so it is a warning. Only where NVML shows all GPUs of the node, and more than were
    given: with device cgroups and in containers the numbers are others. Silent if a GPU is in MIG mode.

    Fix: Use the GPUs that the scheduler gave, and start no more ranks than it gave; or request more GPUs.

        export CUDA_VISIBLE_DEVICES={given|$SLURM_STEP_GPUS}

    See: https://slurm.schedmd.com/gres.html#GPU_Management, https://github.com/ai-dynamo/nixl/pull/2007 (two jobs on
    the same GPUs)
    """
    outside: dict[tuple[_Given, int, tuple[str, ...]], list[RankFacts]] = {}
    beside = grouped(job.processes, lambda process: process.node)
    for node, devices in without_loss(job):
        given, shown = _given(job, node, beside.get(node.key, [])), all_visible(job, node).uuids
        if node.accelerator == "amd":
            continue  # Slurm's numbers are those of ROCm's SMI library, which need not be KFD's
        if given is None or len(shown) <= len(given.gpus) or any(gpu.mig is not False for gpu in devices):
            continue
        # Every process sees all GPUs on the node's bus, so that their numbers are those of the scheduler.
        whole = isinstance(node.pci, Pci) and node.pci.gpus.keys() <= {gpu.pci for gpu in devices}
        if not whole or any(process.gpus is not None for process in beside.get(node.key, [])):
            continue
        numbers = given.gpus[0].isdecimal()
        ours = ((rank, _number(rank, shown) if numbers else rank.gpu) for rank in job.ranks_on(node))
        others = [(rank, gpu) for rank, gpu in ours if gpu is not None and gpu not in given.gpus]
        if others:
            taken = tuple(sorted({gpu for _, gpu in others}))
            outside.setdefault((given, len(shown), taken), []).extend(rank for rank, _ in others)
    for (given, number, taken), ranks in outside.items():
        own, value = ",".join(given.gpus), ranks[0].environment.get("CUDA_VISIBLE_DEVICES", "not set")
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} {'uses' if len(ranks) == 1 else 'use'} {_gpus(taken)}, which may belong to another "
            f"job; {given.source} gives this one {_gpus(given.gpus)} of {number}",
            severity="error" if given.certain else "warning",
            evidence={"CUDA_VISIBLE_DEVICES": value, "given": own},
            values={"given": (quote(own),)},
        )


def _given(job: Job, node: NodeFacts, processes: Sequence[ProcessFacts]) -> _Given | None:
    """Return what the scheduler gave to the job's ranks on a node together, None if that is not known."""
    ranks = job.ranks_on(node)
    first = ranks[0].environment if ranks else {}
    # The batch script's own list is inherited by the steps on all nodes, and holds for its node only.
    here = {node.name, node.hostname, first.get("SLURMD_NODENAME", "")}
    slurm = _SLURM if first_host(first.get("SLURM_JOB_NODELIST", "")) in here else _SLURM[:1]
    for names in (slurm, (_KUBERNETES,) if "KUBERNETES_SERVICE_HOST" in first else ()):
        values = [(name, value) for name in names for rank in ranks if (value := rank.environment.get(name))]
        gpus = _listed([value for _, value in values])
        # An image may set numbers; what the device plugin gave has UUIDs.
        if gpus and not (names == (_KUBERNETES,) and gpus[0].isdecimal()):
            return _Given(values[0][0], gpus, certain=True)
    gpus = _listed([process.given_devices for process in processes if process.given_devices])
    return _Given("the CUDA_VISIBLE_DEVICES with which it began", gpus, certain=False) if gpus else None


def _listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs of lists, sorted; empty if one is no list of numbers, or of UUIDs."""
    names = {name.strip() for value in values for name in value.split(",")}
    if all(map(_INDEX.fullmatch, names)):
        return tuple(map(str, sorted(map(int, names))))
    return tuple(sorted(names)) if all(name.startswith(("GPU-", "MIG-")) for name in names) else ()


def _number(rank: RankFacts, shown: Sequence[str]) -> str | None:
    """Return the number of a rank's GPU as CUDA_VISIBLE_DEVICES would have it, None if unknown."""
    if rank.gpu is None or not isinstance(rank.visible_gpus, tuple) or rank.gpu not in rank.visible_gpus:
        return None
    place, value = rank.visible_gpus.index(rank.gpu), rank.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return str(place)
    items = [item.strip() for item in value.split(",")]
    if all(map(_INDEX.fullmatch, items)):
        return str(int(items[place])) if place < len(items) else None
    return str(shown.index(rank.gpu)) if rank.gpu in shown else None


def _gpus(names: Sequence[str]) -> str:
    """Return GPUs by number or UUID: GPU 2, GPUs 0-3, GPU-1-2."""
    if names[0].isdecimal():
        return f"{'GPU' if len(names) == 1 else 'GPUs'} {fold(map(int, names))}"
    return listed(names)
