"""Findings about a wrong CUDA_VISIBLE_DEVICES and about ranks without any GPU."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.quantities import count
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.gpu.cuda_view import NO_DEVICE, title
from distcheck.rules.gpu.nodes import Value, about_nodes, values
from distcheck.rules.wording import brief, listed, numbers_of, starter
from distcheck.selection.visible_devices import fault_in, visible

if TYPE_CHECKING:
    from collections.abc import Iterator


def wrong(job: Job, own: Value, kind: str) -> Fault | None:
    """Return what is wrong with a value, if that is of this kind."""
    value, fault, devices, uuids = own.value, own.fault, own.own, own.shown.uuids
    if value is None or fault is None or fault.kind != kind:
        return None
    here = len(job.ranks_on(job.node_of(own.ranks[0])))
    # A value that leaves every rank its GPU does not stop the job: eight indices on a node with four GPUs.
    enough = all((local := r.placement.local_rank) is not None and local < len(uuids) for r in own.ranks)
    shown = f"shows {len(uuids)} of {count(len(devices), 'GPU')}"
    return Fault(
        f"{own.variable}={brief(repr(value), 60)} {shown}: {brief(str(fault), 120)}",
        _fix(own, _better(value, devices, here), here),
        {
            own.variable: value,
            "visible": listed([title(uuid, devices) for uuid in uuids], most=len(devices)) or "none",
            "gpus": len(devices),
            **({"item": fault.item} if fault.item else {}),
        },
        severity="warning" if enough else "error",
    )


def _better(value: str, devices: tuple[Gpu, ...], ranks: int) -> str:
    """Return the value probably intended, if valid and enough, else one index per rank."""
    if re.fullmatch(r"[-+0-9\s,;|:\[\](){}'\"]*", value):
        meant = ",".join(dict.fromkeys(re.findall(r"(?<![-0-9])[0-9]+", value)))
        if fault_in(meant, devices) is None and len(visible(meant, devices).uuids) >= ranks:
            return meant
    return ",".join(str(i) for i in range(max(1, min(ranks, len(visible(None, devices).uuids)))))


def _fix(own: Value, better: str, ranks: int) -> Fix:
    unset = f"unset {own.variable}"
    commands = (f"export {own.variable}={better}", unset) if (own.value or "").strip() else (unset,)
    if starter(own.ranks[0]) == "srun":
        return Fix(
            "Request the GPUs from Slurm, which then sets the variable; if a script sets it, correct it there.",
            (f"#SBATCH --gpus-per-node={ranks}", *commands),
        )
    return Fix("Correct the variable where it is set, or unset it so that every GPU is visible.", commands)


def blind(job: Job, node: NodeFacts) -> list[Value]:
    """Return a node's values without a fault that show no GPU; where NVML cannot tell, CUDA must have shown none."""
    found = [v for v in values(job, node) if not v.fault and not v.shown.uuids]
    seen = (v._replace(ranks=[r for r in v.ranks if _sees_none(r)]) if v.shown.unknown else v for v in found)
    return [v for v in seen if v.ranks]


def _sees_none(rank: RankFacts) -> bool:
    return isinstance(rank.cuda, CudaView) and rank.cuda.error in {0, NO_DEVICE} and not rank.cuda.devices


def not_named(job: Job, node: NodeFacts) -> Iterator[NotChecked]:
    """Yield the ranks whose CUDA did not answer and whose value may name GPUs whose UUIDs NVML does not report."""
    for v in values(job, node):
        ranks = [r for r in v.ranks if not isinstance(r.cuda, CudaView)] if v.shown.unknown and not v.fault else []
        if ranks:
            reason = f"{v.variable}={brief(repr(v.value), 60)}: {v.shown.unknown}"
            yield NotChecked(reason=reason, nodes=(node.name,), ranks=numbers_of(ranks))


_MOST_FILES = 8


def no_gpu(job: Job, nodes: list[NodeFacts], why: str, *, suspect: bool) -> Fault:
    """Return the finding about nodes without GPUs; `suspect`: other nodes have some."""
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
    fault = Fault(
        f"{why}; {others}",
        fix,
        {"accelerator": listed(sorted({node.accelerator for node in nodes}))}
        | ({"no access": listed(closed, most=_MOST_FILES)} if closed else {}),
        scope="node" if suspect else "rank",
        owner="admin" if closed else "unknown" if suspect else "user",
        confirmed=not suspect,
    )
    return about_nodes(job, nodes, fault)
