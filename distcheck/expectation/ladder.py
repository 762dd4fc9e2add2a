"""The ladder: what is expected of an operation, by the best source that there is.

| rung | source |
|---|---|
| given | the user, with ``--min-busbw`` |
| baseline | a saved run of this cluster |
| nccl | the graph that NCCL says it built, where the facts leave doubt and it does not say less than they do |
| derived | links and adapters as they were found |
| published | results of others on such GPUs |
| none | |

NCCL's own graph does not go before what is certain: an NCCL that fell back to a slow way expects no more of itself.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.expectation import bounds, models
from distcheck.expectation.hardware import Hardware, NvLinkWay, Socket
from distcheck.expectation.judge import TOO_LOW, Expectation, Rung
from distcheck.expectation.published import published
from distcheck.facts import Missing

if TYPE_CHECKING:
    from collections.abc import Mapping


class Figure(NamedTuple):
    """A figure for the plateau that somebody else has, and in words whose it is."""

    GBps: float
    words: str
    by_size: Mapping[int, float] | None = None
    """GB/s at the sizes of which they are known; None: the figure is asked of every size."""


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
    """Return what is expected of an operation between `ranks` ranks.

    Args:
        op: all_reduce, broadcast, ...
        where: the hardware, or why it is not known.
        ranks: how many took part.
        algorithm: what NCCL said that it used at the largest size (RING, NVLS, ...), where it said it.
        given: the user's own figure; one above the physical bound does not count.
        baseline: of a saved run on the same topology.
        nccl: of the graph that NCCL built.
    """
    own = _own(op, where, ranks, "".join(filter(str.isalnum, algorithm or "")).upper())
    if given is not None and (own.high_GBps is None or given.GBps <= own.high_GBps):
        return _stated(own, given, "given")
    if baseline is not None:
        return _stated(own, baseline, "baseline")
    if nccl is not None and isinstance(where, Hardware) and _adds(own, where, nccl):
        said = _stated(own, nccl, "nccl")
        return msgspec.structs.replace(
            said, certain=False, curve=own.curve, most_GBps=max(nccl.GBps, own.most_GBps or 0.0)
        )
    return own


def _adds(own: Expectation, where: Hardware, nccl: Figure) -> bool:
    """Tell whether NCCL's graph says more than the facts do."""
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
        source=figure.words,
        certain=True,
        curve=None,
        figures=figure.by_size,
    )


def _own(op: str, where: Hardware | Missing, ranks: int, algorithm: str) -> Expectation:
    """Return what the facts and the published figures say."""

    def none(reason: str) -> Expectation:
        return Expectation(op, ranks, source=reason)

    if ranks < 2:
        return none("one rank alone has no bus bandwidth")
    if isinstance(where, Missing):
        return none(where.reason)
    within, between = where.inside, where.outside
    if where.backend not in {"nccl", "gloo"}:
        return none(f"there is no expectation for {where.backend}")
    if where.backend == "gloo" and between is None:
        return none("there is no expectation for Gloo on one machine")
    if isinstance(within, Missing):
        return published(op, where) or none(within.reason)
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
        return none("what joins the ranks is not known")
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
        return Expectation(op, ranks, high_GBps=at_most, source=f"no result of {op} was published to compare with")
    slowing = "".join(f"; {name}={value} may slow it" for name, value in where.settings.items())
    return msgspec.structs.replace(
        model,
        high_GBps=at_most,
        source=model.source + slowing,
        certain=model.certain and where.even and not slowing,
    )
