"""The usual bus bandwidth: NVLink and PCIe on one node, adapters or TCP between nodes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from distcheck.expectation import bounds, curve
from distcheck.expectation.hardware import Adapters, Hardware, Inside, NvLinkWay, PcieWay, Socket
from distcheck.expectation.judge import Expectation
from distcheck.expectation.links import AMPERE, BLACKWELL, VOLTA, port_rate
from distcheck.facts.quantities import count

if TYPE_CHECKING:
    from collections.abc import Mapping

NETWORK_SHARE = 0.95
"""Share of the adapters' rate that a ring over nodes reaches: 24 of 25, 48 of 50 GB/s (NVIDIA/nccl-tests#290)."""
PCIE_LOW, PCIE_USUAL = 0.4, 0.7
"""Shares of NCCL's figure for the PCIe link; they depend on the CPU and on peer-to-peer access between GPUs."""
TREE_LOW, TREE_USUAL = 0.55, 0.78
"""Shares of the bound for trees; published are 0.60 on four nodes and 0.79 to 0.91 on two."""
MIXED_LOW = 0.85
"""Share of the ring that NVLSTree reaches on four nodes (310 of 365 GB/s, ml-engineering)."""
TCP_SHARE = 0.94
"""Share of an Ethernet link that TCP can use with 1500-byte frames."""
TCP_MOST_MBPS = 2_500
"""Up to this rate the link limits TCP; Gloo passes about 1 GB/s between 2 ranks on 2 cores (measured)."""
TCP_LEAST_SECONDS = 0.01
"""Latency does not dominate a message that takes this long on the wire."""
FEWEST_RING, FEWEST_NVLS = 4, 5
"""The fewest ranks on one node in the published figures behind the shares of ring and NVLS."""


def nvlink(op: str, where: Hardware, within: NvLinkWay, algorithm: str) -> Expectation:
    """Return the expectation on one node with NVLink.

    NCCL may use NVLS for all_reduce. If its log does not say so, the ring is the lower end of the usual range.
    """
    words = _links_words(within)
    by_ring = within.rate * within.kind.ring
    ring = Expectation(
        op,
        where.ranks,
        by_ring,
        by_ring,
        by_ring,
        rung="derived",
        source=f"{words} = {within.rate:.1f} GB/s, ring; {within.kind.ring:g} of it is usual",
        certain=within.exact and where.ranks >= FEWEST_RING and (op == "all_reduce" or not within.kind.xgmi),
        curve=_curve(op, within, where.ranks),
    )
    if op != "all_reduce" or within.kind.nvls is None or not within.switched or algorithm == "RING":
        return ring
    bound = bounds.in_switch(where.ranks, within.rate)
    by_nvls = bound * within.kind.nvls
    if algorithm.startswith("NVLS"):
        return msgspec.structs.replace(
            ring,
            low_GBps=by_nvls,
            value_GBps=by_nvls,
            most_GBps=by_nvls,
            source=f"{words} x 2(n-1)/(n+1) = {bound:.1f} GB/s, NVLS between n = {where.ranks} GPUs; "
            f"{within.kind.nvls:g} of it is usual",
            certain=where.ranks >= FEWEST_NVLS,
        )
    more = f"; {by_nvls:.1f} GB/s with NVLS" if by_nvls > by_ring else ""
    return msgspec.structs.replace(
        ring, most_GBps=max(by_ring, by_nvls), source=ring.source + more, certain=ring.certain and not algorithm
    )


def pcie(op: str, where: Hardware, within: PcieWay) -> Expectation:
    """Return the expected band between GPUs in PCIe slots."""
    return Expectation(
        op,
        where.ranks,
        PCIE_LOW * within.rate,
        PCIE_USUAL * within.rate,
        within.rate * within.together,
        rung="derived",
        source=f"{_links_words(within)}; {PCIE_LOW:g} to 1 of it is usual, depending on CPU and board",
        curve=curve.PCIE,
    )


def nodes(op: str, where: Hardware, within: Inside | None, between: Adapters, algorithm: str) -> Expectation:
    """Return the expectation over several nodes.

    A ring reaches the slower of links and adapters; a tree may be faster.
    """
    network = NETWORK_SHARE * between.rate
    share = 1.0 if within is None else within.kind.ring if isinstance(within, NvLinkWay) else PCIE_USUAL
    links = inf
    if within is not None:
        links = share * (within.between_nodes(where.per_node) if isinstance(within, NvLinkWay) else within.rate)
    words = f"{count(between.number, 'adapter')} x {between.rate_Gbps:g} Gb/s = {between.rate:.1f} GB/s per node"
    if within is not None:
        words += (
            f", {_links_words(within)}{f' = {within.rate:.1f} GB/s' if isinstance(within, NvLinkWay) else ''} per GPU"
        )
    limit = f"{NETWORK_SHARE:g} of the adapters' rate" if network <= links else f"{share:g} of the links' rate"
    value = min(links, network)
    ring = Expectation(
        op,
        where.ranks,
        min(value, PCIE_LOW * within.rate) if isinstance(within, PcieWay) else value,
        value,
        value,
        rung="derived",
        source=f"{words}; the slower one limits a ring, and {limit} is usual",
        certain=op == "all_reduce"
        and between.exact
        and (within is None or (isinstance(within, NvLinkWay) and within.exact and not within.kind.xgmi)),
        curve=curve.stretched(curve.NETWORK, max(1.0, where.ranks / curve.NETWORK_RANKS)),
    )
    if op != "all_reduce" or algorithm == "RING":
        return ring
    adding = isinstance(within, NvLinkWay) and within.adding
    inner = inf
    if within is not None:
        inner = bounds.within(where.ranks, where.per_node, within.rate, adding_switches=adding)
    tree = min(bounds.across(where.ranks, where.nodes, between.rate), inner)
    if algorithm in {"TREE", "NVLSTREE"}:
        return msgspec.structs.replace(
            ring,
            low_GBps=TREE_LOW * tree,
            value_GBps=TREE_USUAL * tree,
            most_GBps=tree,
            certain=False,
            source=f"{words}; a tree over {where.nodes} nodes can reach {tree:.1f} GB/s; {TREE_USUAL:g} of it is usual",
        )
    if between.infiniband:
        tree = max(tree, min(bounds.in_network(where.ranks, between.rate), inner))
    return msgspec.structs.replace(
        ring,
        low_GBps=MIXED_LOW * (ring.low_GBps or 0.0),
        most_GBps=max(value, tree),
        certain=False,
        source=f"{ring.source}; other algorithms can reach {tree:.1f} GB/s",
    )


def tcp(op: str, where: Hardware, link: Socket) -> Expectation:
    """Return the expectation over TCP: Gloo reduces with one ring in rank order.

    There is no bound for NCCL: a network plugin may use other adapters than NCCL's sockets.
    """
    wire = port_rate(link.speed_Mbps / 1000)
    words = f"{link.interface} of {link.node}, the slowest link, has {link.speed_Mbps} Mb/s = {wire:.3g} GB/s"
    if link.crossings > 1:
        words += f", and a ring in rank order crosses it {count(link.crossings, 'time')}"
    high = None
    if where.backend == "gloo":
        by_tree = bounds.at_most(op, where.ranks, where.nodes, per_gpu=inf, per_node=wire)
        high = link.rate if op == "all_reduce" else by_tree if where.even else None
    if link.speed_Mbps > TCP_MOST_MBPS:
        return Expectation(op, where.ranks, high_GBps=high, source=f"{words}; the usable share depends on the CPUs")
    if op != "all_reduce":
        return Expectation(op, where.ranks, high_GBps=high, source=f"{words}; the share that {op} reaches is unknown")
    value = TCP_SHARE * link.rate
    by_tree = bounds.across(where.ranks, where.nodes, wire)
    return Expectation(
        op,
        where.ranks,
        value,
        value,
        value if where.backend == "gloo" else max(value, by_tree),
        high,
        rung="derived",
        source=f"{words}; {TCP_SHARE:g} of it is usual with TCP",
        curve={max(1 << 20, int(wire * 1e9 * TCP_LEAST_SECONDS)): 1.0},
    )


def _links_words(way: Inside) -> str:
    if isinstance(way, NvLinkWay):
        what, whose = ("XGMI links", "AMD") if way.kind.xgmi else ("NVLinks", "NCCL")
        return f"{way.links} {what} x {way.kind.rate_GBps:g} GB/s ({whose}'s figure for {way.kind.name})"
    return f"PCIe {way.generation} x{way.width} (NCCL's figure: {way.rate:g} GB/s)"


def _curve(op: str, way: NvLinkWay, ranks: int) -> Mapping[int, float]:
    slower = max(1.0, ranks / curve.NODE_RANKS)
    if op != "all_reduce":
        return curve.stretched(curve.RING, slower * max(1.0, way.rate * way.kind.ring / curve.RING_GBPS))
    if way.kind.xgmi:
        return curve.stretched(curve.MI300_ALL_REDUCE, slower)
    if way.kind == BLACKWELL:
        return curve.stretched(curve.BLACKWELL_ALL_REDUCE, slower)
    return curve.stretched(curve.AMPERE_ALL_REDUCE if way.kind in {VOLTA, AMPERE} else curve.HOPPER_ALL_REDUCE, slower)
