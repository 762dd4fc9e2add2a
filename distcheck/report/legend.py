"""What the columns of the reports for people mean."""

from __future__ import annotations

from typing import get_args

from distcheck.facts import Stage

LEGEND = {
    "local": "the rank's number on its node (LOCAL_RANK)",
    "GPU": "index, PCI address and UUID that NVML gives for the GPU that cuda:LOCAL_RANK is",
    "NUMA": "the NUMA node next to the GPU",
    "NIC": (
        "the network adapter next to the GPU, and how far it is (as in nvidia-smi topo -m): PIX on its PCIe switch, "
        "PXB over several switches, PHB through the root complex of both, NODE on another root complex of its NUMA "
        "node, SYS on another NUMA node"
    ),
    "master": (
        "how the rank's process fared at MASTER_ADDR:MASTER_PORT: rank 0's is listening there, the others "
        "reached it; agent: torchrun's store owns the port, which is healthy; -: nobody tried"
    ),
    "stage": "how far the rank came: " + ", ".join(get_args(Stage)),
    "status": (
        "ok; warning or error: a finding names the rank; unknown: something needed could not be looked at; "
        "missing: nobody spoke for it"
    ),
    "algbw": "bytes / mean time, in GB/s (1e9 bytes)",
    "busbw": (
        "algbw x 2(n-1)/n for all_reduce, x (n-1)/n for all_gather, reduce_scatter and all_to_all, x 1 for broadcast "
        "and send_recv: comparable with the hardware's figure whatever the number of ranks (nccl-tests)"
    ),
    "expected, share": (
        "the bus bandwidth that is usual there at this size, and how much of it was reached; the line below the table "
        "says where it comes from (docs/bandwidth.md)"
    ),
    "mean, min, max": "time per operation over the ranks, in ms; each rank's is the median over its bursts",
    "±": (
        "by which share of itself the mean may be off (95 % confidence, from repeated bursts); *: its time was over "
        "before it was known to 2 %; ?: too few bursts to tell"
    ),
    "wrong": "elements with a wrong value in an exact check of the operation; -: not checked",
}
"""What `--legend` prints."""
