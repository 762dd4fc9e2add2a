"""The share of its plateau that an operation reaches at a size, from published sweeps.

| size | 8 x A100 all_reduce | 8 x H100 | 8 x H200 | 8 x A100 broadcast |
|---|---|---|---|---|
| source | Azure AI-benchmarking-guide | the same | the same | superbenchmark's nccl_broadcast.log |

Between two sizes the share is interpolated over the logarithm of the size; below the smallest it is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from math import log2

MIB = 1 << 20

_SIZES_MIB = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)


def _column(*percent: float) -> dict[int, float]:
    return {size * MIB: share / 100 for size, share in zip(_SIZES_MIB, percent, strict=True)}


AMPERE_ALL_REDUCE = _column(10, 47, 57, 72, 75, 92, 96, 97.8, 99.4, 100)
"""The lower of that sweep and a fleet of 1,939 nodes (superbench-results); below 64 MiB they differ by 9 points."""
HOPPER_ALL_REDUCE = _column(9, 49, 62, 76, 84, 88, 92, 97, 98.5, 100)
"""The lower of H100 and H200, which differ by at most 2 points."""
RING = _column(6, 50, 65, 76, 85, 90, 94, 97, 98.9, 100)
"""8 x A100, broadcast in place."""
BLACKWELL_ALL_REDUCE = {1 << 30: 0.855, 4 << 30: 0.875, 8 << 30: 0.992, 16 << 30: 1.0}
"""8 x B200: 723, 740.6, 839.1 and 845.7 GB/s (ml-engineering); no results were published for smaller sizes."""
MI300_ALL_REDUCE = _column(20, 59, 71, 84, 92, 96, 97.8, 99.2, 99.6, 100)
"""8 x MI300X in place (hisohara/ai-scripts)."""
NETWORK = {128 * MIB: 0.593, 256 * MIB: 0.704, 1 << 30: 0.897, 16 << 30: 1.0}
"""Two nodes of 8 x H100: 289, 343, 437 and 487 GB/s (awsome-distributed-training)."""
PCIE = {64 * MIB: 1.0}
"""Slow links reach their plateau at this size."""


def share_at(curve: Mapping[int, float], size_bytes: int) -> float | None:
    """Return the share of the plateau at a size, None below the curve's smallest size."""
    sizes = sorted(curve)
    if size_bytes < sizes[0]:
        return None
    place = bisect_right(sizes, size_bytes)
    if place == len(sizes):
        return curve[sizes[-1]]
    low, high = sizes[place - 1], sizes[place]
    along = log2(size_bytes / low) / log2(high / low)
    return curve[low] + along * (curve[high] - curve[low])


LEAST_SHARE = 0.6
"""Below this share latency dominates, and published sweeps differ by tens of percent."""
SURE_SHARE = 0.85
"""Below this share a shortfall may be an error of the curve."""
NODE_RANKS, NETWORK_RANKS = 8, 16
"""Ranks in the sweeps of one node, and in the sweep over two."""
RING_GBPS = 232.8
"""The plateau of the sweep behind `RING`."""


def stretched(curve: Mapping[int, float], times: float) -> dict[int, float]:
    """Return the curve of faster links or more ranks: the same share at `times` the size.

    Time is latency plus bytes over rate. Twice the rate, or twice the ranks in a ring, doubles the weight of latency.
    """
    return {int(size * times): share for size, share in curve.items()}
