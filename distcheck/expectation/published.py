"""Published results for a GPU model, used where a node's links could not be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.expectation import curve
from distcheck.expectation.judge import Expectation

if TYPE_CHECKING:
    from distcheck.expectation.hardware import Hardware

_MODELS = (
    ("V100-SXM2", r"V100-SXM"),
    ("A100-SXM4", r"A100-SXM"),
    ("H100-SXM", r"H100 80GB HBM3|H100-SXM"),
    ("H200", r"\bH200$"),
    ("B200", r"\bB200$"),
    ("B300", r"\bB300$"),
    ("GB200", r"\bGB200"),
    ("A800", r"A800-SXM"),
    ("H800", r"\bH800$"),
)
"""The table's GPU names and patterns of NVML's names; a pattern must not match a longer model name."""
_ML_ENGINEERING = "https://github.com/stas00/ml-engineering/tree/master/network/benchmarks"
_SUPERBENCH = "https://github.com/microsoft/superbenchmark/blob/main/tests/data/"
_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_RESULTS: dict[tuple[str, str, int], tuple[float, float, str]] = {
    ("A100-SXM4", "all_reduce", 8): (231.58, 235.05, "https://github.com/microsoft/superbench-results"),
    ("A100-SXM4", "broadcast", 8): (232.3, 234.7, f"{_SUPERBENCH}nccl_broadcast.log"),
    ("A100-SXM4", "reduce", 8): (228, 231, f"{_SUPERBENCH}nccl_reduce.log"),
    ("H100-SXM", "all_reduce", 8): (360, 480, "https://github.com/NVIDIA/nccl-tests/issues/309"),
    ("H200", "all_reduce", 4): (363.3, 363.3, _ML_ENGINEERING),
    ("H200", "all_reduce", 5): (414.2, 414.2, _ML_ENGINEERING),
    ("H200", "all_reduce", 6): (435.6, 435.6, _ML_ENGINEERING),
    ("H200", "all_reduce", 7): (460.0, 460.0, _ML_ENGINEERING),
    ("H200", "all_reduce", 8): (367.2, 482.26, _ML_ENGINEERING),
    ("H200", "all_gather", 8): (361.4, 361.4, _ML_ENGINEERING),
    ("H200", "reduce_scatter", 8): (362.9, 362.9, _ML_ENGINEERING),
    ("B200", "all_reduce", 4): (673, 673, _ML_ENGINEERING),
    ("B200", "all_reduce", 5): (677.8, 677.8, _ML_ENGINEERING),
    ("B200", "all_reduce", 6): (778, 778, _ML_ENGINEERING),
    ("B200", "all_reduce", 7): (811, 811, _ML_ENGINEERING),
    ("B200", "all_reduce", 8): (682.2, 845.67, _ML_ENGINEERING),
    ("B300", "all_reduce", 8): (695, 845, f"{_NCCL}2140"),
    ("H800", "all_reduce", 8): (215, 215, f"{_NCCL}1374"),
    ("A800", "all_reduce", 8): (160, 160, f"{_NCCL}412"),
    ("GB200", "all_reduce", 72): (834, 847, "https://github.com/coreweave/nccl-tests"),
}
"""The lowest and the highest figure of large messages on one node, and the source of the highest, by GPU, operation and
number of ranks: a part of docs/published_bandwidth.py."""


def model(name: str) -> str:
    """Return the table's name of a GPU by NVML's name, '' if there is no published result."""
    return next((known for known, pattern in _MODELS if re.search(pattern, name)), "")


def published(op: str, where: Hardware) -> Expectation | None:
    """Return the published result of an operation for as many such GPUs, else None.

    Over several nodes the network decides, which the table does not cover. Only an NVL72 rack is one NVLink domain.
    """
    known = model(where.gpu)
    one = where.nodes == 1 or (known, where.ranks) == ("GB200", 72)
    if not one or (known, op, where.ranks) not in _RESULTS:
        return None
    low, high, source = _RESULTS[known, op, where.ranks]
    spread = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return Expectation(
        op, where.ranks, low, low, high, rung="published",
        source=f"published results for {where.ranks} x {known}: {spread} GB/s ({source})",
        curve=curve.HOPPER_ALL_REDUCE if op == "all_reduce" else curve.RING,
    )  # fmt: skip
