"""What a GPU must reach by itself: floors by model, as shares of the figures in the vendor's data sheets.

The sparse figures of a data sheet are halved. A floor is far below what a healthy GPU reaches, so that one below it is
at fault whatever its site's power limit or cooling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from distcheck.facts.policy import DeviceFloor, matching

MATMUL_SHARE = 0.4
"""Large products reach 0.65 to 0.86 of the peak on cards with 300 W and more (stas00/ml-engineering, MAMF table)."""
CARD_MATMUL_SHARE = 0.2
"""The same for cards whose power limit, 70 to 300 W, holds them far below the peak of the data sheet."""
MEMORY_SHARE = 0.5
"""A copy reaches 0.8 to 0.93 of the memory's rate; ECC costs up to a tenth on GDDR6."""
HOST_SHARE = 0.2
"""A copy reaches 0.8 of the PCIe link; the slot may be one generation older, and GPUs may share an uplink."""
SLOW = 0.9
"""Below this share of the other GPUs' median, and beyond their spread, a GPU is slow; good ones differ by 3 to 5 %."""
_MIG = re.compile(r"\bMIG\b")


class Peak(NamedTuple):
    """A model's figures in its data sheet."""

    matmul_TFLOPS: float  # noqa: N815 the unit's own spelling
    """Dense bfloat16 with float32 sums; float16 before Ampere."""
    memory_GBps: float  # noqa: N815
    host_GBps: float  # noqa: N815
    """The link to the host in one direction: PCIe 3.0, 4.0 or 5.0 with 16 lanes, or NVLink-C2C."""
    share: float = MATMUL_SHARE
    """The share of `matmul_TFLOPS` that is its floor."""


class Floor(NamedTuple):
    """What a healthy GPU of a model reaches at least."""

    matmul_TFLOPS: float  # noqa: N815
    memory_GBps: float  # noqa: N815
    host_GBps: float  # noqa: N815


_PCIE3, _PCIE4, _PCIE5, _C2C = 15.75, 31.5, 63.0, 450.0
_MODELS: tuple[tuple[str, Peak], ...] = (
    # https://resources.nvidia.com/en-us-blackwell-architecture/datasheet (HGX B300, HGX B200, GB200 NVL72)
    (r"GB[23]00", Peak(2500, 8000, _C2C / 2)),
    (r"B300", Peak(2250, 7700, _PCIE5)),
    (r"B200", Peak(2250, 7700, _PCIE5)),
    # https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip
    (r"GH200", Peak(990, 4000, _C2C)),
    # https://www.nvidia.com/en-us/data-center/h200/
    (r"H200 NVL", Peak(835, 4800, _PCIE5)),
    (r"H200", Peak(989, 4800, _PCIE5)),
    # https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (H100); H800 has fewer NVLinks
    (r"H[18]00 NVL", Peak(835, 3900, _PCIE5)),
    (r"H[18]00 PCIe", Peak(756, 2000, _PCIE5)),
    (r"H[18]00.*HBM2e", Peak(756, 2000, _PCIE5)),
    (r"H[18]00.*HBM3", Peak(989, 3350, _PCIE5)),
    # https://www.nvidia.com/en-us/data-center/a100/ (A800 has fewer NVLinks)
    (r"A[18]00.*40GB", Peak(312, 1555, _PCIE4)),
    (r"A[18]00.*80GB", Peak(312, 1935, _PCIE4)),
    # https://www.nvidia.com/en-us/data-center/products/a30-gpu/, a40, a10-gpu
    (r"A30\b", Peak(165, 933, _PCIE4, CARD_MATMUL_SHARE)),
    (r"A40\b", Peak(149.7, 696, _PCIE4, CARD_MATMUL_SHARE)),
    (r"A10\b", Peak(125, 600, _PCIE4, CARD_MATMUL_SHARE)),
    # https://www.nvidia.com/en-us/data-center/l40s/, l40, l4
    (r"L40S\b", Peak(362, 864, _PCIE4, CARD_MATMUL_SHARE)),
    (r"L40\b", Peak(181, 864, _PCIE4, CARD_MATMUL_SHARE)),
    (r"L4\b", Peak(121, 300, _PCIE4, CARD_MATMUL_SHARE)),
    # https://www.amd.com/en/products/accelerators/instinct.html; of MI250 and MI250X one of the two dies
    (r"MI355X", Peak(2516, 8000, _PCIE5)),
    (r"MI350X", Peak(2306, 8000, _PCIE5)),
    (r"MI325X", Peak(1307, 6000, _PCIE5)),
    (r"MI300X", Peak(1307, 5300, _PCIE5)),
    (r"MI300A", Peak(980, 5300, _PCIE5)),
    (r"MI250X", Peak(191, 1638, _PCIE4)),
    (r"MI250", Peak(181, 1638, _PCIE4)),
    (r"MI210", Peak(181, 1638, _PCIE4)),
    # https://www.nvidia.com/en-us/data-center/v100/ and tesla-t4
    (r"V100S", Peak(130, 1134, _PCIE3)),
    (r"V100-SXM", Peak(125, 900, _PCIE3)),
    (r"V100", Peak(112, 900, _PCIE3)),
    (r"T4\b", Peak(65, 300, _PCIE3, CARD_MATMUL_SHARE)),
)
"""By a pattern of the name that NVML and torch report; the first match counts."""


def peak_of(model: str) -> Peak | None:
    """Return a model's figures by its name; None for other models, and for MIG parts of a GPU."""
    if _MIG.search(model):
        return None
    return next((peak for pattern, peak in _MODELS if re.search(rf"\b(?:{pattern})", model)), None)


def floor_of(model: str, of_site: Mapping[str, DeviceFloor] = {}) -> Floor | None:
    """Return what a healthy GPU of a model reaches at least, figures of the site first; None if the model is not known.

    A figure that only the site could tell and did not is 0.
    """
    if _MIG.search(model):
        return None
    peak = peak_of(model)
    known = Floor(0.0, 0.0, 0.0)
    if peak is not None:
        known = Floor(peak.share * peak.matmul_TFLOPS, MEMORY_SHARE * peak.memory_GBps, HOST_SHARE * peak.host_GBps)
    given = [floor for pattern, floor in of_site.items() if matching(model, pattern)]
    for floor in given:
        figures = (floor.matmul_TFLOPS, floor.memory_GBps, floor.host_GBps)
        known = Floor(*(old if new is None else new for old, new in zip(known, figures, strict=True)))
    return known if given or peak is not None else None
