"""Published results for a GPU model, used where a node's links could not be read."""

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
"""The table's GPU names and patterns of NVML's names; a pattern must not match a longer model name."""
_ENOUGH = 4 << 30


def model(name: str) -> str:
    """Return the table's name of a GPU by NVML's name, '' if there is no published result."""
    return next((known for known, pattern in _MODELS if re.search(pattern, name)), "")


def published(op: str, where: Hardware) -> Expectation | None:
    """Return the published result of an operation for as many such GPUs, else None.

    Over several nodes the network decides, which the table does not cover. Only an NVL72 rack is one NVLink domain.
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
        source=f"published results for {where.ranks} x {known}: {spread} GB/s ({most.url})",
        curve=curve.HOPPER_ALL_REDUCE if op == "all_reduce" else curve.RING,
    )  # fmt: skip


def _fits(row: Reference, known: str, op: str, ranks: int) -> bool:
    return (
        (row.gpu, row.op, row.ranks, row.nodes) == (known, op, ranks, 1)
        and row.kind == "measured"
        and (row.bytes is None or row.bytes >= _ENOUGH)
    )
