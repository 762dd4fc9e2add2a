"""What others have published of such GPUs, for where a node's own links could not be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.expectation import curve
from distcheck.expectation.judge import Expectation
from distcheck.expectation.references import REFERENCES, Reference

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
"""What the table calls GPUs, and how NVML names them: a name must end where another model's would go on."""
_ENOUGH = 4 << 30


def model(name: str) -> str:
    """Return what the table calls a GPU that NVML names so, '' for one of which nothing was published."""
    return next((known for known, pattern in _MODELS if re.search(pattern, name)), "")


def published(op: str, where: Hardware) -> Expectation | None:
    """Return what was published of an operation between as many such GPUs on their plateau; None where nothing was.

    Of several nodes the network decides, which the table does not know; only a rack of NVL72 is one NVLink domain.
    """
    known = model(where.gpu)
    one = where.nodes == 1 or (known, where.ranks) == ("GB200", 72)
    rows = [row for row in REFERENCES if _fits(row, known, op, where.ranks)]
    if not known or not one or not rows:
        return None
    low, high = min(row.low_GBps for row in rows), max(row.high_GBps for row in rows)
    most = max(rows, key=lambda row: row.high_GBps)
    spread = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return Expectation(
        op, where.ranks, low, low, high, rung="published",
        source=f"{spread} GB/s were published for {where.ranks} x {known} ({most.url})",
        curve=curve.HOPPER_ALL_REDUCE if op == "all_reduce" else curve.RING,
    )  # fmt: skip


def _fits(row: Reference, known: str, op: str, ranks: int) -> bool:
    return (
        (row.gpu, row.op, row.ranks, row.nodes) == (known, op, ranks, 1)
        and row.kind == "measured"
        and (row.bytes is None or row.bytes >= _ENOUGH)
    )
