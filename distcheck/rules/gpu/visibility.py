"""Findings about a wrong CUDA_VISIBLE_DEVICES and about ranks without any GPU."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpu, Gpus, usable_name
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.quantities import count
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault, Fix, NotChecked, Severity
from distcheck.rules.gpu.cuda_view import NO_DEVICE
from distcheck.rules.gpu.nodes import VARIABLE, Value, at, not_seen, seen, values
from distcheck.rules.wording import brief, found, listed, named, numbers_of, once, starter
from distcheck.selection.visible_devices import BadItem, fault_in, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.rules import Outcome


def wrong_values(job: Job, kind: str) -> Iterator[Outcome]:
    """Yield one finding for every wrong value of one kind, for all ranks that have it."""
    yield from not_seen(job)
    groups: dict[tuple[str, BadItem], list[tuple[RankFacts, tuple[Gpu, ...]]]] = {}
    harmful = set()
    for alike, value, fault, own, shown in _wrong(job):
        if value is None or fault is None or fault.kind != kind:
            continue
        groups.setdefault((value, fault), []).extend((rank, own) for rank in alike)
        if any(r.placement.local_rank is None or r.placement.local_rank >= len(shown.uuids) for r in alike):
            harmful.add((value, fault))
    for (value, fault), holders in groups.items():
        ranks, devices = [rank for rank, _ in holders], holders[0][1]
        uuids = visible(value, devices).uuids
        here = len(job.ranks_on(job.node_of(ranks[0])))
        # A value that leaves every rank its GPU does not stop the job: eight indices on a node with four GPUs.
        severity: Severity = "error" if (value, fault) in harmful else "warning"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {VARIABLE}={brief(repr(value), 60)} shows {len(uuids)} of "
            f"{count(len(devices), 'GPU')}: " + brief(str(fault), 120),
            _fix(ranks[0], _better(value, devices, here), here),
            severity=severity,
            evidence={
                VARIABLE: value,
                "visible": listed(_shown(devices, uuids), most=len(devices)) or "none",
                "gpus": len(devices),
                **({"item": fault.item} if fault.item else {}),
            },
        )


@once
def _wrong(job: Job) -> list[Value]:
    return [each for node, _ in seen(job) for each in values(job, node) if each.fault is not None]


def _shown(devices: tuple[Gpu, ...], uuids: tuple[str, ...]) -> list[str]:
    """Name the visible GPUs in CUDA's order: GPU 3 (0000:04:00.0), and MIG devices by UUID."""
    names = {usable_name(gpu): f"GPU {gpu.index}{at(gpu)}" for gpu in devices}
    return [names.get(uuid, uuid) for uuid in uuids]


def _better(value: str, devices: tuple[Gpu, ...], ranks: int) -> str:
    """Return the value probably intended, if valid and enough, else one index per rank."""
    if re.fullmatch(r"[-+0-9\s,;|:\[\](){}'\"]*", value):
        meant = ",".join(dict.fromkeys(re.findall(r"(?<![-0-9])[0-9]+", value)))
        if fault_in(meant, devices) is None and len(visible(meant, devices).uuids) >= ranks:
            return meant
    return ",".join(str(i) for i in range(max(1, min(ranks, len(visible(None, devices).uuids)))))


def _fix(rank: RankFacts, better: str, ranks: int) -> Fix:
    commands: tuple[str, ...] = (f"export {VARIABLE}={better}", f"unset {VARIABLE}")
    if not rank.environment[VARIABLE].strip():
        commands = (f"unset {VARIABLE}",)
    if starter(rank) == "srun":
        return Fix(
            "Request the GPUs from Slurm, which then sets the variable; if a script sets it, correct it there.",
            (f"#SBATCH --gpus-per-node={ranks}", *commands),
        )
    return Fix("Correct the variable where it is set, or unset it so that every GPU is visible.", commands)


def blind(job: Job, node: NodeFacts) -> list[Value]:
    """Return a node's values without a fault that show no GPU; where NVML cannot tell, CUDA must have shown none."""
    found = [v for v in values(job, node) if not v.fault and not v.shown.uuids]
    sure = (v._replace(ranks=[r for r in v.ranks if _sees_none(r)]) if v.shown.unknown else v for v in found)
    return [v for v in sure if v.ranks]


def _sees_none(rank: RankFacts) -> bool:
    return isinstance(rank.cuda, CudaView) and rank.cuda.error in {0, NO_DEVICE} and not rank.cuda.devices


def not_named(job: Job, node: NodeFacts) -> Iterator[NotChecked]:
    """Yield the ranks whose CUDA did not answer and whose value may name GPUs whose UUIDs NVML does not report."""
    for v in values(job, node):
        ranks = [r for r in v.ranks if not isinstance(r.cuda, CudaView)] if v.shown.unknown and not v.fault else []
        if ranks:
            reason = f"{VARIABLE}={brief(repr(v.value), 60)}: {v.shown.unknown}"
            yield NotChecked(reason=reason, nodes=(node.name,), ranks=numbers_of(ranks))


_MOST_FILES = 8


def no_gpu(job: Job, nodes: list[NodeFacts], why: str, *, suspect: bool) -> Fault:
    """Return the finding about nodes without GPUs; `suspect`: other nodes have some."""
    ranks = job.ranks_on(*nodes)
    others = "other nodes of the job have GPUs" if suspect else "the job uses NCCL, which needs GPUs"
    most = max((len(job.ranks_on(node)) for node in nodes), default=1)
    closed = sorted({file for node in nodes if isinstance(node.gpus, Gpus) for file in node.gpus.denied})
    if closed:
        fix = Fix(
            "Give the user access to the GPUs' device files, usually through a group.",
            (
                f"ls -l {' '.join(map(quote, closed[:_MOST_FILES]))}; id",
                'sudo usermod -aG video "$USER"  # or the group of the files',
            ),
        )
    else:
        fix = Fix(
            "Request GPUs from the scheduler or the container runtime; on CPUs use init_process_group('gloo').",
            (f"#SBATCH --gpus-per-node={most}", "# add to docker run: --gpus all", "distcheck gate --backend gloo"),
        )
    return Fault(
        scope="node" if suspect else "rank",
        owner="admin" if closed else "unknown" if suspect else "user",
        confirmed=not suspect,
        ranks=numbers_of(ranks),
        nodes=tuple(node.name for node in nodes),
        message=f"{listed([node.name for node in nodes])}: {why}; {others}",
        evidence={"accelerator": listed(sorted({node.accelerator for node in nodes}))}
        | ({"no access": listed(closed, most=_MOST_FILES)} if closed else {}),
        fix=fix,
    )
