"""The rate of one NVLink, XGMI link, PCIe link or network port in one direction."""

from __future__ import annotations

from typing import NamedTuple


class LinkKind(NamedTuple):
    """A generation of NVLink, or of AMD's XGMI."""

    name: str
    """The GPU generation that introduced it."""
    rate_GBps: float  # noqa: N815 the unit's own spelling
    """The rate NCCL assumes for one link (src/graph/topo.h); a ring comes close to it and never exceeds it. Of XGMI,
    the rate that AMD gives as achievable."""
    wire_GBps: float  # noqa: N815
    """The rate of a link without any overhead, as the vendor states it."""
    ring: float
    """The share of NCCL's figure that a ring usually reaches, from the results in docs/published_bandwidth.py."""
    nvls: float | None
    """The same share for NVLS; None where the switches cannot reduce."""
    xgmi: bool = False


VOLTA = LinkKind("Volta", 20.0, 25.0, 0.95, None)
AMPERE = LinkKind("Ampere", 20.0, 25.0, 0.97, None)
AMPERE_BRIDGE = LinkKind("Ampere cards with a bridge", 12.0, 14.0625, 0.95, None)
HOPPER = LinkKind("Hopper", 20.6, 25.0, 0.975, 0.825)
BLACKWELL = LinkKind("Blackwell", 40.1, 50.0, 0.95, 0.75)
MI300 = LinkKind("MI300", 48.0, 64.0, 0.94, None, xgmi=True)
"""https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html"""
MI350 = LinkKind("MI350", 57.6, 76.8, 0.94, None, xgmi=True)
"""AMD's data sheet has 153.6 GB/s a link in both directions; the achievable part is taken to be that of MI300."""

PAYLOAD = 0.9
"""The largest share of an NVLink's wire rate; headers take the rest (H200 copies reach 396 of 450 GB/s)."""

_BY_VERSION = {2: VOLTA, 3: VOLTA, 4: AMPERE, 5: AMPERE, 6: HOPPER, 7: BLACKWELL}
"""NVML's numbers for NVLink 2.0, 2.2, 3.0, 3.1, 4.0 and 5.0 (nvml.h)."""
_SLOW_MBPS = 20_000
"""A40 and RTX A6000 report NVLink 3 and run their links at 14 GB/s."""


def xgmi_kind(model: str) -> LinkKind | None:
    """Return the XGMI links of an AMD GPU all of whose peers have one; None for others, such as MI250X."""
    kinds = {"MI300X": MI300, "MI325X": MI300, "MI350X": MI350, "MI355X": MI350}
    return next((kind for name, kind in kinds.items() if name in model.split()), None)


def nvlink_kind(version: int, speed_MBps: int | None = None) -> LinkKind | None:  # noqa: N803 the unit's own spelling
    """Return the NVLink generation by NVML's number and the link speed, None if unknown."""
    kind = _BY_VERSION.get(version)
    if kind is AMPERE and speed_MBps is not None and 0 < speed_MBps < _SLOW_MBPS:
        return AMPERE_BRIDGE
    return kind


_PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""After line coding, by generation."""
_NCCL_PCIE = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
"""NCCL's speed of a lane; width x speed / 80 is the weight of a path in GB/s (src/graph/topo.cc)."""


def pcie_rate(generation: int, width: int) -> float | None:
    """Return the rate NCCL assumes for a PCIe link in GB/s, None for an unknown generation."""
    speed = _NCCL_PCIE.get(generation)
    return None if speed is None else width * speed / 80


def pcie_wire(generation: int, width: int) -> float | None:
    """Return the rate of a PCIe link in GB/s, headers included."""
    lane = _PCIE_LANE_GBPS.get(generation)
    return None if lane is None else lane * width


def port_rate(rate_Gbps: float) -> float:  # noqa: N803 the unit's own spelling
    """Return the rate of a network port in GB/s."""
    return rate_Gbps / 8
