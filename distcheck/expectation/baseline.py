"""An earlier run to compare with: its hardware and its figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from distcheck.collectives.plan import label
from distcheck.facts.asked import Baseline, BaselineRow
from distcheck.facts.errors import UsageError
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Collectives, Job, Measurement

_UNKNOWN_NOISE = 0.1
"""The assumed uncertainty of a figure with too few bursts to compute one."""


def load(path: Path) -> Baseline:
    """Return the baseline from a saved job.

    Raises:
        UsageError: the file cannot be read, or nothing was measured in that run.
    """
    from distcheck.facts import saved

    try:
        job = saved.load(path)
    except UsageError as error:
        raise UsageError(f"--baseline {error}") from error
    if not isinstance(job.collectives, Collectives) or not job.collectives.measurements:
        raise UsageError(
            f"--baseline {path}: nothing was measured in that run; save one with: distcheck bandwidth --save FILE"
        )
    return of(job, str(path))


def of(job: Job, file: str) -> Baseline:
    """Return a job's hardware and figures as a baseline."""
    ran = job.collectives if isinstance(job.collectives, Collectives) else None
    return Baseline(
        file=file,
        ranks_by_node=tuple(sorted((len(job.ranks_on(node)) for node in job.nodes), reverse=True)),
        gpus=_gpus(job),
        backend=ran.backend if ran else "",
        torch=ran.torch if ran else "",
        nccl=ran.nccl if ran else "",
        rows=tuple(
            BaselineRow(m.op, m.dtype, m.bytes, m.group, fmean(m.seconds_by_rank), m.uncertainty)
            for m in (ran.measurements if ran else ())
            if m.seconds_by_rank
        ),
    )


def _gpus(job: Job) -> dict[str, int]:
    """Return how many GPUs of each model the ranks used."""
    models: Counter[str] = Counter()
    for node in job.nodes:
        devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
        names = {uuid: g.name for g in devices for uuid in (g.uuid, *g.mig_uuids) if isinstance(uuid, str)}
        taken = {rank.gpu for rank in job.ranks_on(node)}
        models.update(name for uuid, name in names.items() if uuid in taken and isinstance(name, str))
    return dict(sorted(models.items()))


def differences(before: Baseline, now: Baseline) -> list[str]:
    """Return the differences that make the figures of two runs not comparable."""
    pairs = {
        "ranks on each node": (_layout(before.ranks_by_node), _layout(now.ranks_by_node)),
        "GPUs": (_models(before.gpus), _models(now.gpus)),
        "backend": (before.backend, now.backend),
    }
    return [f"{what}: {then}, now {today}" for what, (then, today) in pairs.items() if then != today]


def _layout(ranks_by_node: tuple[int, ...]) -> str:
    """Return the number of ranks per node: 4 x 8, 1 x 5 + 3 x 1."""
    return " + ".join(f"{nodes} x {ranks}" for ranks, nodes in Counter(ranks_by_node).items())


def _models(gpus: dict[str, int]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in gpus.items()) or "none"


class Change(NamedTuple):
    """One operation at one size, in the baseline and now."""

    row: BaselineRow
    seconds: float
    noise: float
    """The largest apparent drop, as a share of the bandwidth, that noise can cause; below 1."""

    @property
    def name(self) -> str:
        """The operation with its data type."""
        return label(self.row.op, self.row.dtype)

    @property
    def share(self) -> float:
        """The share of the baseline's bandwidth that is left: 1 is unchanged."""
        return self.row.seconds / self.seconds

    @property
    def fell(self) -> bool:
        """Whether it is slower by more than noise."""
        return self.share < 1 - self.noise


def compare(before: Baseline, measured: tuple[Measurement, ...]) -> list[Change]:
    """Return the change of each figure that both runs have."""
    then = {(row.op, row.dtype, row.bytes, row.group): row for row in before.rows}
    changes = []
    for m in measured:
        row = then.get((m.op, m.dtype, m.bytes, m.group))
        if row is not None and m.seconds_by_rank and row.seconds > 0 and (mean := fmean(m.seconds_by_rank)) > 0:
            changes.append(Change(row, mean, _noise(row, m)))
    return changes


def _noise(then: BaselineRow, now: Measurement) -> float:
    """Return the drop that is possible without a change, given both uncertainties."""
    longer = _UNKNOWN_NOISE if then.uncertainty is None else then.uncertainty
    off = _UNKNOWN_NOISE if now.uncertainty is None else now.uncertainty
    shorter = 1 / (1 + off) if now.at_least is None else now.at_least
    return 1 - shorter / (1 + longer)


def without_counterpart(before: Baseline, measured: tuple[Measurement, ...]) -> list[Measurement]:
    """Return the figures of this run that the baseline lacks."""
    then = {(row.op, row.dtype, row.bytes, row.group) for row in before.rows if row.seconds > 0}
    return [m for m in measured if (m.op, m.dtype, m.bytes, m.group) not in then]
