"""Draw the pictures of the web page in docs/report.md, with headless Chromium, from jobs that the tests use.

Usage: python tests/report/screenshots.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from distcheck.report import render

sys.path.insert(0, str(Path(__file__).parents[1]))
from made import reported
from report import chromium

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
PICTURES = (
    ("report-1024-nodes.png", "large", "", 1280, False, 1560, 0.6),
    ("report-dark.png", "messy", "nodes", 1280, True, 1330, 0.6),
)
"""Name, job, where the picture begins (the id of a heading), width, dark, height and scale."""


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, chromium.chromium(Path(folder) / "profile") as tab:
        for name, job, begin, width, dark, height, scale in PICTURES:
            page = Path(folder) / "page.html"
            page.write_text(render("html", *reported.CASES[job]()), encoding="utf-8")
            tab.open(page)
            tab.look(width, dark=dark)
            place = f"document.getElementById('{begin}').getBoundingClientRect().top + scrollY - 16"
            top = int(tab.evaluate(place)) if begin else 0
            tab.screenshot(FIGURES / name, top, height, scale)


if __name__ == "__main__":
    main()
