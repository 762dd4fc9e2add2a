"""Draw the figures of docs/concepts.md, docs/figures/*.svg: ranks on nodes, and process groups.

Usage: python docs/build_figures.py            write the figures
       python docs/build_figures.py --check    write nothing; list the figures that are stale
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

FIGURES = Path(__file__).resolve().parent / "figures"
_PER_NODE = 4
_CELL, _HIGH, _GAP = 116, 84, 12
"""Width and height of a rank's cell and the space between two cells, in px."""
_STYLE = """\
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; text-anchor: middle }
.strong { font-weight: 600; font-size: 15px } .side { text-anchor: start } .page { fill: #ffffff }
.node { fill: #eef1f4; stroke: #6e7781 } .rank { fill: #ffffff; stroke: #6e7781 }
.row { fill: #cfe5ff; stroke: #0969da } .column { fill: none; stroke: #9a4a00; stroke-width: 2; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .node { fill: #1c2229; stroke: #8b949e }
.rank { fill: #0d1117; stroke: #8b949e } .row { fill: #10325c; stroke: #58a6ff } .column { stroke: #f0883e }
}"""


def nodes(number: int) -> str:
    """Return a figure of nodes with four GPUs each: rank, local rank and GPU."""
    inside = _PER_NODE * (_CELL + _GAP) + _GAP
    parts = []
    for node in range(number):
        top = _GAP + node * (_HIGH + 3 * _GAP + 24)
        parts.append(_box("node", _GAP, top, inside, _HIGH + 2 * _GAP + 24))
        where = ": MASTER_ADDR, MASTER_PORT" if not node else ""
        parts.append(_text("strong side", 2 * _GAP, top + 22, f"node{node + 1}{where}"))
        for local in range(_PER_NODE):
            rank, left = node * _PER_NODE + local, 2 * _GAP + local * (_CELL + _GAP)
            parts += _cell(left, top + 24 + _GAP, f"rank {rank}", f"local rank {local}", f"cuda:{local} = GPU {local}")
    title = f"{number * _PER_NODE} ranks on {number} {'nodes' if number > 1 else 'node'} of {_PER_NODE} GPUs"
    return _figure(title, inside + 2 * _GAP, number * (_HIGH + 3 * _GAP + 24) + _GAP, parts)


def groups() -> str:
    """Return a figure of eight ranks in groups: one for each node, and one for each local rank."""
    side, high, nodes_ = 118, _HIGH + 2 * _GAP, 2
    wide = side + _PER_NODE * (_CELL + 2 * _GAP) + _GAP
    parts = []
    for node in range(nodes_):
        top, first = 2 * _GAP + node * (high + _GAP), node * _PER_NODE
        parts.append(_box("row", _GAP, top, wide - 2 * _GAP, high))
        parts.append(_text("strong side", 2 * _GAP, top + 44, f"node{node + 1}"))
        parts.append(_text("side", 2 * _GAP, top + 66, str(list(range(first, first + _PER_NODE)))))
        for local in range(_PER_NODE):
            left = side + _GAP + local * (_CELL + 2 * _GAP)
            lines = f"rank {first + local}", f"in its row: {local}", f"in its column: {node}"
            parts += _cell(left, top + _GAP, *lines)
    bottom = 2 * _GAP + nodes_ * (high + _GAP)
    for local in range(_PER_NODE):
        left = side + _GAP + local * (_CELL + 2 * _GAP)
        parts.append(_box("column", left - 6, _GAP, _CELL + 12, bottom + 16))
        parts.append(_text("", left + _CELL // 2, bottom + 12, str([local, local + _PER_NODE])))
    title = "Eight ranks in two groups by node (rows) and four groups by local rank (columns), with their group ranks"
    return _figure(title, wide, bottom + 16 + 2 * _GAP, parts)


def _cell(left: int, top: int, *lines: str) -> Iterator[str]:
    """Yield a rank's box with its lines of text."""
    yield _box("rank", left, top, _CELL, _HIGH)
    for number, line in enumerate(lines):
        yield _text("" if number else "strong", left + _CELL // 2, top + 26 + 22 * number, line)


def _box(kind: str, left: int, top: int, wide: int, high: int) -> str:
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{wide}" height="{high}" rx="8"/>'


def _text(kind: str, x: int, y: int, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _figure(title: str, wide: int, high: int, parts: list[str]) -> str:
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    page = f'<rect class="page" width="{wide}" height="{high}" rx="8"/>'
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", f"<style>\n{_STYLE}\n</style>", page, *parts, "</svg>\n"]
    )


def figures() -> dict[Path, str]:
    """Return the text of every figure."""
    texts = {"one-node": nodes(1), "two-nodes": nodes(2), "groups": groups()}
    return {FIGURES / f"{name}.svg": text for name, text in texts.items()}


def stale() -> list[str]:
    """Return the names of the figures that differ from what this program draws."""
    return [path.name for path, text in figures().items() if not path.exists() or path.read_text("utf-8") != text]


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a figure is stale")
    if parser.parse_args().check:
        print("\n".join(stale()))
        return int(bool(stale()))
    for path, text in figures().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
