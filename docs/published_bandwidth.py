"""Published bus bandwidths, each with its source.

The model is derived from them and tested against them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from distcheck.expectation.hardware import Adapters, Hardware, Inside, NvLinkWay, Outside, PcieWay
from distcheck.expectation.links import AMPERE, BLACKWELL, HOPPER, MI300, MI350, VOLTA

MIB, GIB = 1 << 20, 1 << 30
NHC = "https://github.com/Azure/azurehpc-health-checks/blob/main/conf/"
GUIDE = "https://github.com/Azure/AI-benchmarking-guide/tree/main/Azure_Results"
FLEET = "https://github.com/microsoft/superbench-results"
SUPERBENCH = "https://github.com/microsoft/superbenchmark/blob/main/tests/data/"
AI_SCRIPTS = "https://github.com/hisohara/ai-scripts/blob/main/training/01_rccl-smoketest/README.md"
ML_ENGINEERING = "https://github.com/stas00/ml-engineering/tree/master/network/benchmarks"
AWS = "https://github.com/aws-samples/awsome-distributed-training/tree/main/micro-benchmarks/nccl-tests"
COREWEAVE = "https://github.com/coreweave/nccl-tests"
AICR = "https://github.com/NVIDIA/aicr"
NCCL = "https://github.com/NVIDIA/nccl/issues/"
NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests/issues/"


class Reference(msgspec.Struct, frozen=True):
    """One published figure."""

    system: str
    gpu: str
    op: str
    ranks: int
    nodes: int
    bytes: int | None
    """None if the source names no size; then the figure is the plateau."""
    low_GBps: float  # noqa: N815 the unit's own spelling
    high_GBps: float  # noqa: N815
    """The same, or the upper end if the source gives a range."""
    kind: Literal["measured", "gate"]
    """A gate is an operator's minimum."""
    tool: str
    url: str
    algorithm: str | None = None
    """The algorithm, if the source names or forces it."""
    inside: Inside | None = None
    """The links that it ran on, if known."""
    outside: Outside | None = None
    tolerance: float = 0.03
    """The share of the figure by which the model may be off."""
    unlike: str = ""
    """Why the model does not reproduce it."""

    @property
    def hardware(self) -> Hardware | None:
        """The hardware it ran on, None if unknown."""
        if self.inside is None:
            return None
        per_node = self.ranks // self.nodes
        return Hardware("nccl", self.ranks, self.nodes, per_node, self.inside, self.outside)


V100 = NvLinkWay(VOLTA, 6, switched=False, exact=False)
A100, A800 = NvLinkWay(AMPERE, 12), NvLinkWay(AMPERE, 8)
H100, H800 = NvLinkWay(HOPPER, 18), NvLinkWay(HOPPER, 8)
B200 = NvLinkWay(BLACKWELL, 18)
PCIE4, PCIE5 = PcieWay(4, 16), PcieWay(5, 16)
PAIRS = PcieWay(4, 16, together=2)
MI300X = NvLinkWay(MI300, 7, switched=False)
MI355X = NvLinkWay(MI350, 7, switched=False, exact=False)
EFA = Adapters(32, 100, exact=False)
EFA_200 = Adapters(16, 200, exact=False)
EFA_P4DE = Adapters(4, 100, exact=False)
EFA_P6 = Adapters(8, 400)
NDR = Adapters(8, 400, infiniband=True)
TCPXO = Adapters(8, 200)
RAILS_400 = Adapters(8, 400)

_TESTS, _RCCL, _TORCH = "nccl-tests", "rccl-tests", "torch 2.9.1, NCCL 2.27.7"
_SUPERBENCH = "nccl-tests by SuperBench"
_MESH = "the source does not say which links join the two GPUs"
_NVL72 = "there is no model for nodes joined by NVLink"
_SOONER = "below 16 GiB these reach more of their plateau than the two nodes behind the curve"


def _one(
    system: str, gpu: str, ranks: int, size: int | None, figure: float, tool: str, url: str, *, op: str = "all_reduce",
    to: float | None = None, gate: bool = False, algorithm: str | None = None, inside: Inside | None = None,
    tolerance: float = 0.03, unlike: str = "",
) -> Reference:  # fmt: skip
    return Reference(
        system, gpu, op, ranks, 1, size, figure, to or figure, "gate" if gate else "measured", tool, url, algorithm,
        inside, None, tolerance, unlike,
    )  # fmt: skip


def _many(
    system: str, gpu: str, nodes: int, size: int | None, figure: float, tool: str, url: str, *,
    ranks: int | None = None, algorithm: str | None = None, inside: Inside | None = H100,
    outside: Outside | None = None, unlike: str = "",
) -> Reference:  # fmt: skip
    return Reference(
        system, gpu, "all_reduce", ranks or 8 * nodes, nodes, size, figure, figure, "measured", tool, url,
        algorithm, inside, outside, 0.05, unlike,
    )  # fmt: skip


def _sweep(
    figures: dict[int, float], system: str, gpu: str, tool: str, url: str, *, op: str = "all_reduce",
    algorithm: str | None = None, inside: Inside | None = None,
) -> tuple[Reference, ...]:  # fmt: skip
    return tuple(
        _one(system, gpu, 8, size, figure, tool, url, op=op, algorithm=algorithm, inside=inside,
             tolerance=0.1 if size < GIB else 0.03)
        for size, figure in figures.items()
    )  # fmt: skip


ONE_NODE = (
    _one("Azure ND40rs_v2", "V100-SXM2", 8, 8 * GIB, 110, _TESTS, f"{NHC}nd40rs_v2.conf", gate=True, inside=V100),
    _one("Azure ND96asr_v4", "A100-SXM4", 8, 8 * GIB, 228, _TESTS, f"{NHC}nd96asr_v4.conf", gate=True, inside=A100),
    _one("Azure ND96amsr_A100_v4", "A100-SXM4", 8, 16 * GIB, 228, _TESTS, f"{NHC}nd96amsr_a100_v4.conf", gate=True,
         inside=A100),
    _one("Azure ND A100 v4", "A100-SXM4", 8, 8 * GIB, 231.58, f"{_TESTS} in place, NCCL 2.18.5", GUIDE, inside=A100),
    *_sweep(
        {1 * MIB: 23.67, 32 * MIB: 155.3, 256 * MIB: 221.9, GIB: 229.9, 8 * GIB: 235.05},
        "Azure, fleet of 1,939 nodes", "A100-SXM4", _SUPERBENCH, FLEET, inside=A100,
    ),
    _one("8 x A100", "A100-SXM4", 8, 16 * GIB, 234.89, _TESTS, ML_ENGINEERING, inside=A100),
    _one("Azure ND96isr_H100_v5", "H100-SXM", 8, 16 * GIB, 460, _TESTS, f"{NHC}nd96isr_h100_v5.conf", gate=True,
         algorithm="NVLS", inside=H100),
    *_sweep({GIB: 466.35, 8 * GIB: 478.87}, "Azure ND H100 v5", "H100-SXM", f"{_TESTS} in place", GUIDE,
            algorithm="NVLS", inside=H100),
    _one("8 x H100 without NVLS", "H100-SXM", 8, None, 360, _TESTS, f"{NCCL}1442", to=370, algorithm="RING",
         inside=H100),
    _one("Azure ND96isr_H200_v5", "H200", 8, 16 * GIB, 431, _TESTS, f"{NHC}nd96isr_h200_v5.conf", gate=True,
         algorithm="NVLS", inside=H100),
    *_sweep({GIB: 467.58, 8 * GIB: 479.98}, "Azure ND H200 v5", "H200", f"{_TESTS} in place", GUIDE,
            algorithm="NVLS", inside=H100),
    *_sweep({GIB: 463.58, 4 * GIB: 473.10, 8 * GIB: 477.45, 16 * GIB: 482.26}, "8 x H200", "H200", _TORCH,
            ML_ENGINEERING, algorithm="NVLS", inside=H100),
    _one("8 x H200", "H200", 8, 16 * GIB, 480.0, _TESTS, ML_ENGINEERING, algorithm="NVLS", inside=H100),
    _one("8 x H200 without NVLS", "H200", 8, 16 * GIB, 367.6, _TORCH, ML_ENGINEERING, algorithm="RING", inside=H100),
    _one("8 x H200 without NVLS", "H200", 8, 16 * GIB, 367.2, _TESTS, ML_ENGINEERING, algorithm="RING", inside=H100),
    _one("4 of 8 H200", "H200", 4, 8 * GIB, 363.3, _TORCH, ML_ENGINEERING, algorithm="RING", inside=H100),
    *(
        _one(f"{n} of 8 H200", "H200", n, 8 * GIB, figure, _TORCH, ML_ENGINEERING, algorithm="NVLS", inside=H100,
             tolerance=0.02)
        for n, figure in ((5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1))
    ),
    *(
        _one("AWS p6-b200", "B200", 8, size, figure, "torch", ML_ENGINEERING, algorithm="NVLS", inside=B200)
        for size, figure in ((GIB, 723), (4 * GIB, 740.6), (8 * GIB, 839.07), (16 * GIB, 845.67))
    ),
    _one("AWS p6-b200 without NVLS", "B200", 8, 8 * GIB, 682.2, "torch", ML_ENGINEERING, algorithm="RING", inside=B200),
    *(
        _one(f"{n} of 8 B200", "B200", n, 8 * GIB, figure, "torch", ML_ENGINEERING, algorithm="RING", inside=B200)
        for n, figure in ((4, 673), (5, 677.8))
    ),
    *(
        _one(f"{n} of 8 B200", "B200", n, 8 * GIB, figure, "torch", ML_ENGINEERING, algorithm="NVLS", inside=B200,
             tolerance=0.02)
        for n, figure in ((6, 778), (7, 811), (8, 838))
    ),
    _one("8 x B300 without NVLS", "B300", 8, None, 695, _TESTS, f"{NCCL}2140", algorithm="RING", inside=B200),
    _one("8 x B300", "B300", 8, None, 845, _TESTS, f"{NCCL}2140", algorithm="NVLS", inside=B200),
    _one("8 x H800", "H800", 8, None, 215, _TESTS, f"{NCCL}1374", algorithm="NVLS", inside=H800),
    _one("8 x A800", "A800", 8, None, 160, _TESTS, f"{NCCL}412", inside=A800, tolerance=0.05),
    _one("Azure NC48ads_A100_v4", "A100 PCIe, bridges", 2, 16 * GIB, 193, _TESTS, f"{NHC}nc48ads_a100_v4.conf",
         gate=True, inside=NvLinkWay(AMPERE, 12, switched=False)),
    _one("Azure NC96ads_A100_v4", "A100 PCIe", 4, 8 * GIB, 25, _TESTS, f"{NHC}nc96ads_a100_v4.conf", gate=True,
         inside=PAIRS),
    _one("Azure NC80adis_H100_v5", "H100 NVL", 2, 16 * GIB, 208, _TESTS, f"{NHC}nc80adis_h100_v5.conf", gate=True,
         inside=NvLinkWay(HOPPER, 12, switched=False)),
    _one("2 x H100 PCIe with a bridge", "H100 PCIe, bridges", 2, 8 * GIB, 116, _TESTS, f"{NCCL}1161", unlike=_MESH),
    _one("4 x A100 PCIe, IOMMU on", "A100 PCIe", 4, None, 8, _TESTS, f"{NCCL}841", inside=PCIE4,
         unlike="the IOMMU routes traffic between GPUs through the CPU: the fault that the source reports"),
    _one("4 x A100 PCIe, IOMMU off", "A100 PCIe", 4, None, 21, _TESTS, f"{NCCL}841", inside=PCIE4),
    _one("8 x RTX 5090, no P2P", "RTX 5090", 8, None, 28, _TESTS, f"{NCCL}1639", inside=PCIE5),
    _one("4 x RTX 5090, no P2P", "RTX 5090", 4, None, 35, _TESTS, f"{NCCL}1639", inside=PCIE5),
    _one("Azure ND96isr_MI300X_v5", "MI300X", 8, 16 * GIB, 314, _RCCL, f"{NHC}nd96isr_mi300x_v5.conf", gate=True,
         inside=MI300X),
    _one("8 x MI300X", "MI300X", 8, 4 * GIB, 312.9, _RCCL, ML_ENGINEERING, inside=MI300X),
    *_sweep({32 * MIB: 226.78, 256 * MIB: 303.1, GIB: 313.36, 8 * GIB: 315.91}, "8 x MI300X", "MI300X",
            f"{_RCCL} in place", AI_SCRIPTS, inside=MI300X),
    _one("8 x MI325X", "MI325X", 8, 16 * GIB, 319.21, f"{_RCCL} in place", AI_SCRIPTS, inside=MI300X),
    _one("GB200 NVL72, one rack", "GB200", 72, 512 * MIB, 586, _TESTS, COREWEAVE, unlike=_NVL72),
    _one("GB200 NVL72, one rack", "GB200", 72, 8 * GIB, 834, _TESTS, COREWEAVE, to=847, unlike=_NVL72),
)  # fmt: skip
"""All_reduce on one node, or in one NVLink domain."""

OTHER_OPERATIONS = (
    *_sweep(
        {
            1 * MIB: 13.8, 16 * MIB: 117, 32 * MIB: 150, 64 * MIB: 179, 128 * MIB: 200, 256 * MIB: 211, 512 * MIB: 220,
            GIB: 225, 2 * GIB: 231, 4 * GIB: 232.3, 8 * GIB: 232.8,
        },
        "8 x A100 40 GB", "A100-SXM4", _SUPERBENCH, f"{SUPERBENCH}nccl_broadcast.log", op="broadcast", inside=A100,
    ),
    _one("8 x A100 40 GB", "A100-SXM4", 8, 8 * GIB, 234.7, f"{_SUPERBENCH}, in place",
         f"{SUPERBENCH}nccl_broadcast.log", op="broadcast", inside=A100),
    _one("8 x A100 40 GB", "A100-SXM4", 8, None, 228, _SUPERBENCH, f"{SUPERBENCH}nccl_reduce.log", op="reduce", to=231,
         inside=A100),
    _one("8 x H200", "H200", 8, 16 * GIB, 361.4, _TESTS, ML_ENGINEERING, op="all_gather", inside=H100),
    _one("8 x H200", "H200", 8, 16 * GIB, 362.9, _TESTS, ML_ENGINEERING, op="reduce_scatter", inside=H100),
)  # fmt: skip
"""Other operations on one node; no result for broadcast itself on Hopper was published."""

SEVERAL_NODES = (
    _many("MI300X over RoCE", "MI300X", 2, 16 * GIB, 357.46, _RCCL, AI_SCRIPTS, inside=MI300X, outside=RAILS_400),
    *(
        _many("MI325X over RoCE", "MI325X", nodes, 16 * GIB, figure, _RCCL, AI_SCRIPTS, algorithm="RING",
              inside=MI300X, outside=RAILS_400)
        for nodes, figure in ((2, 350.24), (4, 350.59), (8, 350.84))
    ),
    _many("MI355X over RoCE", "MI355X", 2, 8 * GIB, 369.04, _RCCL, AI_SCRIPTS, inside=MI355X, outside=RAILS_400),
    _many("AWS p4de", "A100-SXM4", 2, 2 * GIB, 78.3, _TESTS, AWS, algorithm="TREE", inside=A100, outside=EFA_P4DE,
          unlike="a tree over few adapters: only a band is known"),
    *(
        _many("AWS p5", "H100-SXM", 2, size, figure, _TESTS, AWS, algorithm="NVLSTree", outside=EFA)
        for size, figure in ((128 * MIB, 289), (256 * MIB, 343), (GIB, 437), (16 * GIB, 487))
    ),
    _many("AWS p5en", "H200", 4, 16 * GIB, 364.87, _TORCH, ML_ENGINEERING, algorithm="RING", outside=EFA_200),
    _many("AWS p5en", "H200", 4, 16 * GIB, 310, _TORCH, ML_ENGINEERING, algorithm="NVLSTree", outside=EFA_200,
          unlike="a tree over four nodes: only a band is known"),
    _many("AWS p5en", "H200", 2, 16 * GIB, 486.8, _TORCH, ML_ENGINEERING, algorithm="NVLSTree", outside=EFA_200),
    *(
        _many("AWS p6-b200", "B200", 4, size, figure, "torch", ML_ENGINEERING, algorithm="RING", inside=B200,
              outside=EFA_P6,
              unlike="" if size > 4 * GIB else _SOONER)
        for size, figure in ((GIB, 362), (4 * GIB, 377), (16 * GIB, 381.8))
    ),
    _many("HGX H100 or H200 without NVLS", "H100-SXM", 1, None, 368.8, _TESTS, f"{NCCL_TESTS}309", algorithm="RING"),
    _many("HGX H100 or H200", "H100-SXM", 1, None, 480, _TESTS, f"{NCCL_TESTS}309", algorithm="NVLS"),
    _many("HGX H100 or H200", "H100-SXM", 2, None, 470, _TESTS, f"{NCCL_TESTS}309", algorithm="NVLSTree", outside=NDR),
    _many("HGX H100 or H200", "H100-SXM", 4, None, 365.8, _TESTS, f"{NCCL_TESTS}309", algorithm="RING", outside=NDR),
    *(
        _many("8 nodes of 8 x H100 with SHARP", "H100-SXM", 8, size, figure, _TESTS, COREWEAVE,
              algorithm="COLLNET_CHAIN", outside=NDR,
              unlike="switches that reduce exceed a ring: only a band is known")
        for size, figure in ((512 * MIB, 356), (8 * GIB, 386.6))
    ),
    *(
        _many(f"GB200 NVL72, {racks} racks", "GB200", 18 * racks, size, figure, _TESTS, COREWEAVE, ranks=72 * racks,
              inside=None, unlike=_NVL72)
        for racks, size, figure in ((2, 8 * GIB, 793), (2, 16 * GIB, 810), (20, 16 * GIB, 405))
    ),
    _many("GKE A3 Mega with TCPXO", "H100-SXM", 2, 16 * GIB, 340, _TESTS, AICR, algorithm="TREE", outside=TCPXO,
          unlike="a tree: only a band is known"),
    _many("GKE A3 Mega fallen back to TCP", "H100-SXM", 2, 16 * GIB, 4, _TESTS, AICR, outside=TCPXO,
          unlike="the fault: NCCL used sockets"),
)  # fmt: skip
"""All_reduce over several nodes."""

REFERENCES = (*ONE_NODE, *OTHER_OPERATIONS, *SEVERAL_NODES)
