"""Text for terminals: tables within a width, bars, and plain ASCII."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from distcheck.report.harmless import harmless
from distcheck.report.tables import Grid

BAR = 10
"""Columns of a full bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ASCII = str.maketrans({"±": "+-", "…": "...", "█": "#", "·": ".", "°": " deg "})
_OTHERS = re.compile(r"[^\x00-\x7f]+")
_PARTS = str.maketrans(dict.fromkeys(_EIGHTHS[1:4], " ") | dict.fromkeys(_EIGHTHS[4:], "#"))


def bar(share: float) -> str:
    """Return a bar for a share of 1."""
    eighths = round(8 * BAR * min(1.0, max(0.0, share)))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def ascii_only(text: str) -> str:
    """Return text in ASCII; what has no equivalent is escaped as in JSON, so that JSON stays what it is."""
    import json

    return _OTHERS.sub(lambda match: json.dumps(match[0])[1:-1], text.translate(_ASCII).translate(_PARTS))


def drawn(table: Grid, width: int = 0) -> Iterator[str]:
    """Yield the lines of a table and its note."""
    if table.rows:
        yield from _fitted(table, width)
    if table.note:
        yield table.note


def _fitted(table: Grid, width: int) -> Iterator[str]:
    """Yield the lines of a table; if it is wider than `width`, without the columns that can be spared."""
    kept = list(range(len(table.names)))
    cells = [[harmless(cell) for cell in row] for row in (table.names, *table.rows)]
    dropped = []
    for place in sorted((n for n in kept if table.spare[n]), key=lambda n: -table.spare[n]):
        if not width or _width(cells, kept) <= width:
            break
        kept.remove(place)
        dropped.append(place)
    names, *rows = ([row[n] for n in kept] for row in cells)
    align = ["right" if table.kinds[n] == "number" else "left" for n in kept]
    yield from (line.rstrip() for line in _tabulate(names, rows, align).splitlines())
    if dropped:
        left_out = ", ".join(table.names[n] or "bar" for n in sorted(dropped))
        yield from textwrap.wrap(f"too narrow for: {left_out} (-v shows all columns)", width, subsequent_indent="  ")


def _width(cells: list[list[str]], kept: Sequence[int]) -> int:
    return sum(max(len(row[n]) for row in cells) for n in kept) + 2 * (len(kept) - 1)


def _import_tabulate() -> Any:
    """Return tabulate, imported without importlib.metadata, which it only asks for its own version.

    That reads the folder of installed packages and imports Python's email: a tenth of the start of `distcheck env`.
    """
    name = "importlib.metadata"
    if name in sys.modules:
        import tabulate

        return tabulate
    stand_in = sys.modules[name] = ModuleType(name)
    vars(stand_in).update(version=str, PackageNotFoundError=ImportError)
    try:
        import tabulate
    finally:
        del sys.modules[name]
    return tabulate


def _tabulate(names: list[str], rows: list[list[str]], align: list[str]) -> str:
    tabulate = _import_tabulate()
    before = tabulate.MIN_PADDING
    tabulate.MIN_PADDING = 0  # it would make each column two wider than its name
    try:
        text: str = tabulate.tabulate(rows, names, tablefmt="simple", disable_numparse=True, colalign=align)
    finally:
        tabulate.MIN_PADDING = before
    return text
