"""Write tables of measured figures into the pages, with their source.

A page has a block for a table between two comments::

    <!-- measured: NAME -->
    <!-- end of NAME -->

The program that measures calls ``put(page, NAME, lines, command="python ... --write")``, which writes the lines with
date, commit and machine. Until then the block is empty. Tables are written anew for a release (docs/releasing.md), not
by every change. ``python docs/measured.py`` lists them with their dates, and the commands that write them.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import shutil
import subprocess
import timeit
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(
    r"<!-- measured: (?P<name>[^\n]+?)(?P<facts>\n.*?)? ?-->\n(?P<lines>.*?)<!-- end of (?P=name) -->", re.DOTALL
)
_BEGIN = re.compile(r"<!-- measured: ([^\n]+?)(?: -->|\n)")
_STEPS = 1_000_000


class Table(NamedTuple):
    """A measured table of a page."""

    name: str
    command: str
    """The command that writes it."""
    date: str
    """Of the measurement; empty if there was none."""


def put(page: str, name: str, lines: Sequence[str], *, command: str, root: Path = ROOT) -> None:
    """Write `lines` into their block of `page` (a path from the root, such as docs/reliability.md)."""
    path = root / page
    text = path.read_text(encoding="utf-8")
    found = next((block for block in _BLOCK.finditer(text) if block["name"] == name), None)
    if found is None:
        raise ValueError(f"{page} has no block {name!r}: add <!-- measured: {name} --> and <!-- end of {name} -->")
    written = [
        f"<!-- measured: {name}",
        f"command: {command} -->",
        *lines,
        "",
        f"*Measured {today()} at {_commit(root)}, {machine()}, by `{command}`.*",
        f"<!-- end of {name} -->",
    ]
    path.write_text(text[: found.start()] + "\n".join(written) + text[found.end() :], encoding="utf-8")


def reword(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a page's text with new lines in a filled block; its line about date and machine stays."""
    block = next((block for block in _BLOCK.finditer(text) if block["name"] == name), None)
    if block is None or (end := block["lines"].rfind("\n*Measured ")) < 0:
        raise ValueError(f"no measured block {name!r} with lines")
    return text[: block.start("lines")] + "\n".join(lines) + "\n" + text[block.start("lines") + end :]


def outside(text: str) -> str:
    """Return a page's text with measured blocks replaced by empty lines."""
    return _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def tables(text: str) -> Iterator[Table]:
    """Yield the measured tables of a page; a block without an end is an error."""
    blocks = {block["name"]: block for block in _BLOCK.finditer(text)}
    for name in _BEGIN.findall(text):
        if name not in blocks:
            raise ValueError(f"<!-- end of {name} --> is missing")
        command = re.search(r"command: (.+)", blocks[name]["facts"] or "")
        date = re.search(r"\n\*Measured (\S+)", blocks[name]["lines"])
        yield Table(name, command[1] if command else "", date[1] if date else "")


def listed(root: Path = ROOT) -> list[str]:
    """Return a line for each table of README.md and docs/, the oldest first: date, page and command."""
    pages = [page for page in (root / "README.md", *(root / "docs").rglob("*.md")) if page.exists()]
    found = [(table, page) for page in pages for table in tables(page.read_text(encoding="utf-8"))]
    return [
        f"{table.date or 'never':10}  {page.relative_to(root)}: {table.name}: {table.command}"
        for table, page in sorted(found, key=lambda pair: (pair[0].date, str(pair[1]), pair[0].name))
    ]


def today() -> str:
    """Return the date of a measurement."""
    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def _commit(root: Path) -> str:
    """Return the commit, with a note if files other than the pages differ from it."""
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)*.md")
    return _git(root, "rev-parse", "--short=10", "HEAD") + (" with uncommitted changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """Return what a measurement depends on: cores and how fast they are now, memory, GPUs, versions.

    The cores of a virtual machine are at some hours half as fast as at others.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    python, torch = platform.python_version(), metadata.version("torch")
    parts = [f"{cores} cores ({_steps():.0f} million loop steps/s)", f"{memory:.0f} GiB", *_gpus()]
    return ", ".join([*parts, f"Python {python}", f"torch {torch}"])


def _gpus() -> list[str]:
    """Return the GPUs that nvidia-smi lists, by model: 8 x NVIDIA H200."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(query, check=False, capture_output=True, text=True, timeout=60).stdout.splitlines()
    return [f"{number} x {name}" for name, number in Counter(listed).items()]


def _steps() -> float:
    """Return how many million steps of an empty loop Python takes in a second, at its best of some tries."""
    return _STEPS / min(timeit.repeat("for _ in steps: pass", f"steps = range({_STEPS})", repeat=5, number=1)) / 1e6


if __name__ == "__main__":
    print("\n".join(listed()))
