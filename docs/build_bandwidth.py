"""Write the tables of docs/bandwidth.md from distcheck/expectation; --check only compares.

Usage: python docs/build_bandwidth.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from published_bandwidth import ONE_NODE, OTHER_OPERATIONS, SEVERAL_NODES, Reference

from distcheck.expectation import curve
from distcheck.expectation.ladder import expect

PAGE = Path(__file__).resolve().parent / "bandwidth.md"
_CURVES = {
    "8 x A100, all_reduce": curve.AMPERE_ALL_REDUCE,
    "8 x H100 and H200, all_reduce": curve.HOPPER_ALL_REDUCE,
    "8 x B200, all_reduce": curve.BLACKWELL_ALL_REDUCE,
    "8 x MI300X, all_reduce": curve.MI300_ALL_REDUCE,
    "8 x A100, other operations": curve.RING,
    "2 x 8 H100 over the network": curve.NETWORK,
}


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "plateau"
    return f"{size_bytes >> 30} GiB" if size_bytes >= 1 << 30 else f"{size_bytes >> 20} MiB"


def _figure(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _usual(row: Reference) -> str:
    """Return the value of the model for a row at its size."""
    if row.hardware is None:
        return f"none: {row.unlike}"
    found = expect(row.op, row.hardware, ranks=row.ranks, algorithm=row.algorithm)
    share = 1.0 if row.bytes is None else found.share(row.bytes)
    if share is None or found.low_GBps is None or found.most_GBps is None:
        return "not judged at this size"
    value = _figure(round(found.low_GBps * share, 1), round(found.most_GBps * share, 1))
    return f"{value}: {row.unlike}" if row.unlike else value


def references(rows: Sequence[Reference]) -> str:
    """Return a table of published figures."""
    return _table(
        ["system", "GPU", "operation", "ranks", "nodes", "size", "GB/s", "algorithm", "expected", "tool", "source"],
        [
            [
                row.system, row.gpu, row.op, str(row.ranks), str(row.nodes), _size(row.bytes),
                ("at least " if row.kind == "gate" else "") + _figure(row.low_GBps, row.high_GBps),
                row.algorithm or "", _usual(row), row.tool, f"[source]({row.url})",
            ]
            for row in rows
        ],
    )  # fmt: skip


def shares() -> str:
    """Return a table of the share of the plateau by size."""
    sizes = sorted({size for each in _CURVES.values() for size in each})
    return _table(
        ["size", *_CURVES],
        [
            [_size(size), *(f"{each[size]:.1%}" if size in each else "" for each in _CURVES.values())]
            for size in sizes
        ],
    )  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    "shares": shares,
    "one node": lambda: references(ONE_NODE),
    "other operations": lambda: references(OTHER_OPERATIONS),
    "several nodes": lambda: references(SEVERAL_NODES),
}


def page(text: str) -> str:
    """Return the page with new tables."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: docs/build_bandwidth.py writes this -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"(?s){re.escape(begin)}.*?{re.escape(end)}")
        if not pattern.search(text):
            raise ValueError(f"docs/bandwidth.md has no place for the table of {name}")
        before, after = pattern.split(text, maxsplit=1)
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if not parser.parse_args().check:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    if old != new:
        print("docs/bandwidth.md is stale: run python docs/build_bandwidth.py", file=sys.stderr)
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main())
