"""Text for terminals: tables within a width, bars, and plain ASCII."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

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
    cells = [[harmless(cell).strip() for cell in row] for row in (table.names, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    dropped = []
    for place in sorted((n for n in kept if table.spare[n]), key=lambda n: -table.spare[n]):
        if not width or sum(widths[n] + 2 for n in kept) - 2 <= width:
            break
        kept.remove(place)
        dropped.append(place)
    for row in (cells[0], ["-" * width for width in widths], *cells[1:]):
        aligned = (row[n].rjust(widths[n]) if table.kinds[n] == "number" else row[n].ljust(widths[n]) for n in kept)
        yield "  ".join(aligned).rstrip()
    if dropped:
        left_out = ", ".join(table.names[n] or "bar" for n in sorted(dropped))
        yield from textwrap.wrap(f"too narrow for: {left_out} (-v shows all columns)", width, subsequent_indent="  ")
