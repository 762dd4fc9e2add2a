"""What the reports say beside the headline: what was checked, and how many findings there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts, NodeState
from distcheck.facts.quantities import count, tally
from distcheck.facts.ranges import fold
from distcheck.report.gpus import nodes_without_ranks
from distcheck.report.harmless import harmless
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import Document
from distcheck.report.sections import PIECES
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.job.settings import number


def checked(job: Job, report: Document) -> list[str]:
    """Return what was checked, in one to three lines, and when, where and how."""
    made = [harmless(f"{job.at} on {job.host}: {job.asked.line}")] if job.at else []
    return [*_checked(job, report), *_policy(report), *made]


def _policy(report: Document) -> list[str]:
    """Return by which policy the job was judged: policy /etc/distcheck/policy.toml (sha256 9f86d0…), mode observe."""
    policy = report.policy
    if policy is None:
        return []
    state = "not used" if policy.problem else f"mode {policy.mode}"
    return [harmless(f"policy {', '.join(policy.files)} (sha256 {policy.digest[:12]}), {state}")]


def _checked(job: Job, report: Document) -> list[str]:
    if job.hang is not None:
        from distcheck.report.hang import hang_checked  # only for `distcheck hang`

        return [harmless(hang_checked(job))]
    if "node" in job.asked.looks:
        return list(map(harmless, _lone_nodes(job, report)))
    world = report.world
    absent = report.missing_ranks
    missing = ""
    if absent:
        on = fold_nodes({row.node for row in report.ranks if row.status == "missing" and row.node})
        missing = f" ({len(absent)} missing: {fold(absent, PIECES)}{' on ' + on if on else ''})"
    parts = [
        f"{count(world.ranks, 'rank')}{missing} on {count(world.nodes, 'node')}",
        f"launcher {world.launcher}{_restart(job)}",
        f"backend {world.backend}",
        f"torch {world.torch}" if world.torch else "torch not found",
        *([f"NCCL {world.nccl}"] if world.nccl else []),
    ]
    lines = [harmless(f"distcheck {report.distcheck} {report.command}: {', '.join(parts)}")]
    if job.asked.told:
        lines.append(harmless(job.asked.told))
    if job.asked.armed:
        lines.append(harmless(job.asked.armed))
    if derived := _derived(job):
        lines.append(harmless(derived))
    if job.asked.by_default:
        # cli.request takes one rank per GPU, or 2 without GPUs.
        devices = job.nodes[0].gpus.devices if job.nodes and isinstance(job.nodes[0].gpus, Gpus) else ()
        ranks = f"{count(world.ranks, 'local rank')}, one per GPU" if devices else "2 local Gloo ranks"
        lines.append(f"No rank count given; using {ranks}. Use --nproc N to set it.")
    lines += [harmless(f"{node.name}: {', '.join(_gpus_of(node))}") for node in nodes_without_ranks(job)[:PIECES]]
    of_ranks = {row.gpu.uuid: row.gpu.name for row in report.ranks if row.gpu and row.gpu.name}
    idle = [row.gpu.name for row in report.gpus if row.gpu.name]
    return lines + _gpus(idle if report.gpus else of_ranks.values())


def _derived(job: Job) -> str:
    """Return which meeting place distcheck derived, as nothing told COMMAND's; '' if it was told, or is passed on."""
    zero = next((rank.placement for rank in job.ranks if rank.placement.rank == 0), None)
    unnamed = job.launched is not None and job.launched.stated is not None and not job.launched.stated.master_port
    if zero is None or not (zero.master_derived or unnamed) or not job.asked.program or job.asked.export:
        return ""
    return f"tested at {zero.master_addr}:{zero.master_port}, which COMMAND does not name; it may meet elsewhere"


def _gpus(names: Iterable[str]) -> list[str]:
    found = tally(names)
    return [harmless(f"GPUs: {found}")] if found else []


def _restart(job: Job) -> str:
    """Return which restart of torchrun this is, in parentheses; '' for the first start.

    Each agent counts its own restarts, so one that joined late has counted fewer.
    """
    restarted = ranks_with(job, lambda rank: number(rank, "TORCHELASTIC_RESTART_COUNT") or 0)
    if not restarted:
        return ""
    again = max(number(rank, "TORCHELASTIC_RESTART_COUNT") or 0 for rank in restarted)
    return f" (restart {again} of {restarted[0].environment.get('TORCHELASTIC_MAX_RESTARTS', '?')})"


def _gpus_of(node: NodeFacts) -> list[str]:
    """Return how many GPUs a node has, and their driver."""
    if isinstance(node.gpus, Gpus):
        driver = [f"driver {node.gpus.driver}"] if isinstance(node.gpus.driver, str) else []
        return [count(len(node.gpus.devices), "GPU"), *driver]
    return ["AMD GPUs" if node.accelerator == "amd" else "GPUs unknown" if node.gpus else "no GPU"]


def _lone_nodes(job: Job, report: Document) -> list[str]:
    """Return what was checked when nodes have no ranks."""
    began = f"distcheck {report.distcheck} {report.command}:"
    if len(job.nodes) != 1:  # none if the run was interrupted
        return [f"{began} {count(len(job.nodes), 'node')}"]
    node = job.nodes[0]
    parts = [node.name, *_gpus_of(node)]
    if isinstance(node.state, NodeState) and node.state.slurm_context:
        parts.append(f"Slurm {node.state.slurm_context} of job {node.state.slurm_job or '?'}")
    devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
    return [f"{began} {', '.join(parts)}", *_gpus(gpu.name for gpu in devices if isinstance(gpu.name, str))]


def counts(report: Document, diagnosis: Diagnosis) -> str:
    """Return the numbers of problems and gaps, and the duration: 1 error, 2 warnings, 4.1 s."""
    severities = Counter(severity for severity, _, _ in {(f.severity, f.confirmed, f.rule) for f in diagnosis.findings})
    unlooked = len({n.rule for n in diagnosis.not_checked})
    return ", ".join(
        [
            count(severities["error"], "error"),
            count(severities["warning"], "warning"),
            *([f"{count(unlooked, 'rule')} not checked"] if unlooked else []),
            f"{report.seconds:.1f} s",
        ]
    )
