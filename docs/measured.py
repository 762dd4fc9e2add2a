"""Write tables of measured figures into the pages, with their source and a digest of the measured code.

A page has a block for a table between two comments::

    <!-- measured: NAME -->
    <!-- end of NAME -->

The program that measures calls ``put(page, NAME, lines, covers=[...], command="python ... --write")``, which writes
the lines with date, commit and machine. Until then the block is empty. `covers` are the files, or glob patterns of
files, relative to the root of the repository, that can change the figures; FILE.py::NAME is one function or class of a
file. ``python docs/measured.py`` lists the tables whose files have changed since, with the commands that write them.
They are written anew for a release (docs/releasing.md), not by every change: a table has the commit that it is of.
"""

from __future__ import annotations

import ast
import datetime as dt
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import timeit
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
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
    covers: tuple[str, ...]
    digest: str
    """Of the covered files at the time of the measurement; empty if it was never measured."""


def put(page: str, name: str, lines: Sequence[str], *, covers: Sequence[str], command: str, root: Path = ROOT) -> None:
    """Write `lines` into their block of `page` (a path from the root, such as docs/reliability.md)."""
    path = root / page
    text = path.read_text(encoding="utf-8")
    found = next((block for block in _BLOCK.finditer(text) if block["name"] == name), None)
    if found is None:
        raise ValueError(f"{page} has no block {name!r}: add <!-- measured: {name} --> and <!-- end of {name} -->")
    written = [
        f"<!-- measured: {name}",
        f"command: {command}",
        f"covers: {' '.join(covers)}",
        f"digest: {digest(covers, root)} -->",
        *lines,
        "",
        f"*Measured {today()} at {_commit(covers, root)}, {machine()}, by `{command}`.*",
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
    blocks = {block["name"]: block["facts"] or "" for block in _BLOCK.finditer(text)}
    for name in _BEGIN.findall(text):
        if name not in blocks:
            raise ValueError(f"<!-- end of {name} --> is missing")
        facts = dict(line.split(": ", 1) for line in blocks[name].strip().splitlines())
        yield Table(name, facts.get("command", ""), tuple(facts.get("covers", "").split()), facts.get("digest", ""))


def stale(root: Path = ROOT) -> list[str]:
    """Return a line for each table of README.md and docs/ that is older than its measured code.

    A block that was never filled is not stale.
    """
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [
        f"{page.relative_to(root)}: {table.name!r} is stale: the measured code has changed; run {table.command}"
        for page in pages
        if page.exists()
        for table in tables(page.read_text(encoding="utf-8"))
        if table.digest and table.digest != digest(table.covers, root)
    ]


def digest(covers: Sequence[str], root: Path = ROOT) -> str:
    """Return the digest of the covered files: the syntax tree of Python files, the bytes of others.

    Comments, docstrings, imports and formatting of Python files do not count. File names do not count, so that a file
    can move. A pattern that matches no file is an error.
    """
    whole = [cover for cover in covers if "::" not in cover]
    contents = [
        *(_code(path.read_bytes()) if path.suffix == ".py" else path.read_bytes() for path in _files(whole, root)),
        *(_part(cover, root) for cover in covers if "::" in cover),
    ]
    each = sorted(hashlib.sha256(content).digest() for content in contents)
    return hashlib.sha256(b"".join(each)).hexdigest()[:16]


def _part(cover: str, root: Path) -> bytes:
    """Return the code of one function or class of a file."""
    file, _, name = cover.partition("::")
    tree = ast.parse((root / file).read_bytes())
    found = [node for node in tree.body if getattr(node, "name", None) == name]
    if not found:
        raise ValueError(f"{file} has no {name}")
    return _code(ast.unparse(found[0]).encode())


def _files(covers: Sequence[str], root: Path) -> list[Path]:
    """Return the covered files; of FILE.py::NAME the whole file."""
    patterns = [cover.partition("::")[0] for cover in covers]
    matches = {pattern: [path for path in root.glob(pattern) if path.is_file()] for pattern in patterns}
    if nothing := [pattern for pattern, paths in matches.items() if not paths]:
        raise ValueError(f"no file matches {' '.join(nothing)}")
    return sorted({path for paths in matches.values() for path in paths if "__pycache__" not in path.parts})


@cache  # a file is covered by many tables
def _code(source: bytes) -> bytes:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            node.body = [statement for statement in node.body if not (_is_text(statement) or _is_import(statement))]
        elif isinstance(node, ast.JoinedStr):  # Python 3.12.0 and 3.12.1 add empty strings
            node.values = [value for value in node.values if not (isinstance(value, ast.Constant) and not value.value)]
    return _dump(tree).encode()


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _dump(node: object) -> str:
    """Return a tree as ast.dump does, without empty fields, which differ between Python versions."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def today() -> str:
    """Return the date of a measurement."""
    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def _commit(covers: Sequence[str], root: Path) -> str:
    """Return the commit, with a note if the covered files differ from it."""
    paths = [str(path.relative_to(root)) for path in _files(covers, root)]
    changed = _git(root, "status", "--porcelain", "--", *paths)
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


def main() -> int:
    """Run as a script."""
    old = stale()
    print("\n".join(old) or "all measured tables are up to date")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
