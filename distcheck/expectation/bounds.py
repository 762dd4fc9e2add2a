"""Upper bounds of the bus bandwidth of n ranks on k nodes, in GB/s.

`per_gpu` is the rate at which a GPU sends to the other GPUs of its node, `per_node` the rate of all adapters of a node,
both one way. For nodes with a single rank, pass infinity as `per_gpu`.
"""

from __future__ import annotations

from math import inf

RINGS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce")
"""Operations that NCCL can run as a ring; their bus bandwidth is then the rate of the ring's slowest link."""


def in_switch(ranks: int, per_gpu: float) -> float:
    """Return the bound of all_reduce when the NVSwitches of one node reduce (NVLS).

    A GPU sends its data once and a part of the sum, n + 1 parts for n (NVIDIA/nccl-tests, pull request 239).
    """
    return 2 * (ranks - 1) / (ranks + 1) * per_gpu


def across(ranks: int, nodes: int, per_node: float) -> float:
    """Return the bound that the network sets for all_reduce with a tree.

    Only data that other nodes lack leaves a node. So two nodes can be faster than their adapters: 2 x 8 ranks reach up
    to 1.875 times the adapters' rate.
    """
    return per_node * nodes * (ranks - 1) / ((nodes - 1) * ranks)


def within(ranks: int, per_rank_node: int, per_gpu: float, *, adding_switches: bool) -> float:
    """Return the bound that a node's own links set for all_reduce over several nodes."""
    m = per_rank_node
    if m == 1:
        return inf
    by_links = per_gpu * m * (ranks - 1) / ((m - 1) * ranks)
    by_switches = 2 * (ranks - 1) / ranks * per_gpu * m / (m + 1)
    return max(by_links, by_switches) if adding_switches else by_links


def in_network(ranks: int, per_node: float) -> float:
    """Return the bound of all_reduce when the network's switches reduce (SHARP)."""
    return 2 * (ranks - 1) / ranks * per_node


def at_most(
    op: str,
    ranks: int,
    nodes: int,
    *,
    per_gpu: float,
    per_node: float,
    adding_switches: bool = False,
    adding_network: bool = False,
) -> float:
    """Return the bound of an operation with any algorithm.

    `adding_switches` and `adding_network` say whether the NVSwitches and the network's switches can reduce data.
    """
    m = max(ranks // nodes, 1)
    if nodes == 1:
        return max(per_gpu, in_switch(ranks, per_gpu)) if op == "all_reduce" and adding_switches else per_gpu
    if op == "all_reduce":
        network = across(ranks, nodes, per_node)
        if adding_network:
            network = max(network, in_network(ranks, per_node))
        return min(network, within(ranks, m, per_gpu, adding_switches=adding_switches))
    into_gpu = per_gpu + per_node / m if m > 1 else inf
    if op in {"all_gather", "reduce_scatter"}:
        return min(across(ranks, nodes, per_node), into_gpu)
    if op == "all_to_all":
        return min(per_node * (ranks - 1) / (m * (ranks - m)), into_gpu)
    return min(per_node, into_gpu)
