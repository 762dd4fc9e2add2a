"""Joins the ranks' timings in the groups of a mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from distcheck.collectives.dimensions import measured
from distcheck.collectives.plan import GroupTiming, Timing
from distcheck.facts.base import SHORTEST_SECONDS
from distcheck.facts.groups import GroupFigure
from distcheck.facts.mesh import Mesh


def figures(mesh: Mesh | None, timings: Iterable[tuple[int, GroupTiming]]) -> tuple[GroupFigure, ...]:
    """Return the figure of each dimension and operation that a rank has reported."""
    by_part: defaultdict[tuple[str, str], dict[int, GroupTiming]] = defaultdict(dict)
    for rank, timing in timings:
        by_part[timing.dimension, timing.op][rank] = timing
    if mesh is None:
        return ()
    return tuple(_figure(mesh, part, by_part[part]) for part in measured(mesh) if part in by_part)


def _figure(mesh: Mesh, part: tuple[str, str], timings: Mapping[int, GroupTiming]) -> GroupFigure:
    dimension, op = part
    together = {rank: timing.together for rank, timing in timings.items() if timing.together}
    groups = mesh.groups(dimension)
    of_groups = [[together[rank] for rank in ranks if rank in together] for ranks in groups]
    by_group = [_bursts(its, len(ranks)) for its, ranks in zip(of_groups, groups, strict=True)]
    first = next(iter(together.values()), None)
    alone = _bursts([t.alone for rank in groups[0] if (t := timings.get(rank)) and t.alone], len(groups[0]))
    on_cpus = first is not None and bool(first.waited)
    return GroupFigure(
        dimension,
        op,
        bytes=first.bytes if first else 0,
        dtype=first.dtype if first else "float32",
        bursts=max(map(len, by_group)),
        alone_seconds=median(alone) if alone else None,
        seconds=tuple(median(bursts) if bursts else None for bursts in by_group) if first else (),
        best_seconds=tuple(min(bursts) if bursts else None for bursts in by_group) if first else (),
        own_seconds=tuple(_own(*each) for each in zip(by_group, of_groups, strict=True)) if on_cpus else (),
        lacks=next((timing.lacks for timing in timings.values() if timing.lacks), ""),
    )


def _bursts(timings: Sequence[Timing], ranks: int) -> list[float]:
    """Return each burst's mean over the ranks of a group; empty if one of them has no figure."""
    if len(timings) != ranks:
        return []
    return [fmean(of_ranks) for of_ranks in zip(*(timing.bursts for timing in timings), strict=False)]


def _own(bursts: Sequence[float], timings: Sequence[Timing]) -> float | None:
    """Return the median of a group's bursts without the longest time that one of its ranks waited for CPUs."""
    waited = zip(*(timing.waited for timing in timings), strict=False)
    own = [max(burst - max(of_ranks), SHORTEST_SECONDS) for burst, of_ranks in zip(bursts, waited, strict=False)]
    return median(own) if own else None
