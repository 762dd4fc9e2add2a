"""The ladder: the expectation for an operation, from the best available source.

| rung | source |
|---|---|
| given | the user, with ``--min-busbw`` |
| baseline | a saved run of this cluster |
| nccl | the graph that NCCL reports, where the facts leave doubt and the graph is not slower than they are |
| derived | links and adapters as found |
| none | |

NCCL's own graph does not override certain facts: an NCCL that fell back to a slow path reports a slow graph.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.expectation import bounds, models
from distcheck.expectation.hardware import Hardware, NvLinkWay, Socket
from distcheck.expectation.judge import TOO_LOW, Expectation, Rung
from distcheck.facts.base import Missing

if TYPE_CHECKING:
    from collections.abc import Mapping


class Figure(NamedTuple):
    """A figure for the plateau from outside the model, and its source as text."""

    GBps: float
    source: str
    by_size: Mapping[int, float] | None = None
    """GB/s at the known sizes; None: the figure holds for every size."""


def expect(
    op: str,
    where: Hardware | Missing,
    *,
    ranks: int,
    algorithm: str | None = None,
    given: Figure | None = None,
    baseline: Figure | None = None,
    nccl: Figure | None = None,
) -> Expectation:
    """Return the expectation for an operation between `ranks` ranks.

    Args:
        op: all_reduce, broadcast, ...
        where: the hardware, or why it is unknown.
        ranks: the number of ranks that took part.
        algorithm: the algorithm in NCCL's log at the largest size (RING, NVLS, ...), if logged.
        given: the user's figure; it is ignored above the physical bound.
        baseline: the figure of a saved run on the same topology.
        nccl: the figure of the graph that NCCL built.
    """
    own = _own(op, where, ranks, "".join(filter(str.isalnum, algorithm or "")).upper())
    if given is not None and (own.high_GBps is None or given.GBps <= own.high_GBps):
        return _stated(own, given, "given")
    if baseline is not None:
        return _stated(own, baseline, "baseline")
    if nccl is not None and isinstance(where, Hardware) and _adds(own, where, nccl):
        stated = _stated(own, nccl, "nccl")
        return msgspec.structs.replace(
            stated, certain=False, curve=own.curve, most_GBps=max(nccl.GBps, own.most_GBps or 0.0)
        )
    return own


def _adds(own: Expectation, where: Hardware, nccl: Figure) -> bool:
    """Return whether NCCL's graph adds information to the facts."""
    if own.op not in bounds.RINGS or own.certain:
        return False
    if own.low_GBps is None:
        return isinstance(where.inside, Missing) or isinstance(where.outside, Missing)
    return nccl.GBps >= TOO_LOW * own.low_GBps


def _stated(own: Expectation, figure: Figure, rung: Rung) -> Expectation:
    return msgspec.structs.replace(
        own,
        low_GBps=figure.GBps,
        value_GBps=figure.GBps,
        most_GBps=figure.GBps,
        rung=rung,
        source=figure.source,
        certain=True,
        curve=None,
        figures=figure.by_size,
    )


def _own(op: str, where: Hardware | Missing, ranks: int, algorithm: str) -> Expectation:
    """Return the expectation from the facts."""

    def none(reason: str) -> Expectation:
        return Expectation(op, ranks, source=reason)

    if ranks < 2:
        return none("a single rank has no bus bandwidth")
    if isinstance(where, Missing):
        return none(where.reason)
    within, between = where.inside, where.outside
    if where.backend not in {"nccl", "gloo"}:
        return none(f"there is no expectation for {where.backend}")
    if where.backend == "gloo" and between is None:
        return none("there is no expectation for Gloo on one machine")
    if isinstance(within, Missing):
        return none(within.reason)
    if isinstance(between, Missing):
        return none(between.reason)
    if isinstance(between, Socket):
        return models.tcp(op, where, between)
    if between is not None:
        model = models.nodes(op, where, within, between, algorithm)
    elif isinstance(within, NvLinkWay):
        model = models.nvlink(op, where, within, algorithm)
    elif within is not None:
        model = models.pcie(op, where, within)
    else:
        return none("it is unknown what connects the ranks")
    high = bounds.at_most(
        op,
        ranks,
        where.nodes,
        per_gpu=inf if within is None else within.most,
        per_node=inf if between is None else between.most,
        adding_switches=isinstance(within, NvLinkWay) and within.adding,
        adding_network=between is not None and between.infiniband,
    )
    at_most = high if where.even and high < inf else None
    if op not in bounds.RINGS:
        return Expectation(op, ranks, high_GBps=at_most, source=f"no published result for {op} to compare with")
    slowing = "".join(f"; {name}={value} may slow it" for name, value in where.settings.items())
    return msgspec.structs.replace(
        model,
        high_GBps=at_most,
        source=model.source + slowing,
        certain=model.certain and where.even and not slowing,
    )
