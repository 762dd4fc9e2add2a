"""What the columns of the human-readable reports mean."""

from __future__ import annotations

from typing import get_args

from distcheck.facts.rank import Stage

LEGEND = {
    "local": "the rank's number on its node (LOCAL_RANK)",
    "GPU": "NVML's index, PCI address and UUID of the GPU that is cuda:LOCAL_RANK",
    "NUMA": "the NUMA node next to the GPU",
    "NIC": (
        "the network adapter next to the GPU and its distance (as in nvidia-smi topo -m): PIX on its PCIe switch, "
        "PXB over several switches, PHB through the root complex of both, NODE on another root complex of its NUMA "
        "node, SYS on another NUMA node"
    ),
    "pp, dp, tp and so on": "the rank's coordinate in that dimension of --mesh, which is its rank in that group",
    "dimension": (
        "a dimension of --mesh: ranks of each group, number of groups, the first group, and on how many nodes and "
        "NVLink domains (clusterUuid and cliqueId in NVML) a group lies, the least and the most"
    ),
    "master": (
        "result of the rank's process at MASTER_ADDR:MASTER_PORT: rank 0 is listening, the other ranks reached it; "
        "agent: torchrun's store owns the port, which is healthy; -: not tried"
    ),
    "stage": "last stage that the rank reached: " + ", ".join(get_args(Stage)),
    "status": (
        "ok; warning or error: a finding names the rank; unknown: a required check could not be made; "
        "missing: no process reported the rank"
    ),
    "algbw": "bytes / mean time, in GB/s (1e9 bytes)",
    "busbw": (
        "algbw x 2(n-1)/n for all_reduce, x (n-1)/n for all_gather, reduce_scatter and all_to_all, x 1 for broadcast "
        "and send_recv: comparable with the hardware's figure for any number of ranks (nccl-tests)"
    ),
    "expected, share": (
        "the usual bus bandwidth on this hardware at this size, and the share of it that was reached; the line below "
        "the table names the source (docs/bandwidth.md)"
    ),
    "alone, together, kept": (
        "busbw of a dimension's first group while all other ranks wait; the median of all groups while all of them "
        "work; the share that the first group then keeps"
    ),
    "slowest, its ranks": "busbw and ranks of the slowest group while all of them work",
    "mean, min, max": "time per operation over the ranks, in ms; a rank's time is the median over its bursts",
    "±": (
        "relative uncertainty of the mean (95 % confidence, from repeated bursts); *: time ran out before it was "
        "known to 2 %; empty: too few bursts"
    ),
    "own work": (
        "what each rank's GPU or CPU reached by itself after the collectives: matrix speed, in products of large "
        "matrices; copies within its memory (read and written); copies from and to pinned memory of the host"
    ),
    "wrong": "number of wrong elements in an exact check of the operation; -: not checked",
}
"""What `--legend` prints."""
