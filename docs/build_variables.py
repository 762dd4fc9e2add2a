"""Write distcheck/rules/nccl/variables.py from the lists in docs/variables; with --check only compare.

Usage: python docs/build_variables.py [--check]

docs/variables/nccl.txt lists the variables that the releases of NVIDIA/nccl read, with the first and last release that
reads each, and the names that belong to other software; docs/variables/torch.txt those of torch. Their heads state how
they were made; docs/compare_variables.py compares them with wheels. A line of the table has the names that share its
columns:

- nccl, first release, last release, int, text, level or flag; NAME=default if it is a number, NAME>successor
- torch, first release, last release, int, bool, float or text; NAME>deprecated name
- other: what other software reads, names or prefixes*
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple


class Listed(NamedTuple):
    """The first and last release that reads a variable, as the lists state them."""

    first: tuple[int, ...]
    last: tuple[int, ...]


LISTS = Path(__file__).resolve().parent / "variables"
TABLE = LISTS.parent.parent / "distcheck" / "rules" / "nccl" / "variables.py"
_STRTOL = {"NCCL_COLLNET_ENABLE", "NCCL_P2P_DISABLE"}
"""Read as text and then through strtol (src/init.cc, src/graph/paths.cc)."""
_RELEASES = re.compile(r"(\d+\.\d+\.\d+)\.\.(\d+\.\d+\.\d+)")
_LISTED = re.compile(r"([A-Z]\w+)[^|]*\|(?: [A-Z+-]+ \|)? (\d[.\d]+?)\.\.(\d[.\d]+) \|")
_SUCCESSOR = re.compile(r"(?:renamed|use|now|replaced by|correct name) (NCCL_\w+)")


def _kind(name: str, default: str) -> str:
    if name in _STRTOL:
        return "int"
    if default == "(level)":
        return "level"
    if default in {"true", "false"}:
        return "flag"
    return "text" if default in {"(string)", "nullptr"} or default.startswith('"') or "NCCL_LOG_" in default else "int"


def _cells(line: str, most: int = 6) -> list[str]:
    return [cell.strip() for cell in line.split(" | ", most - 1)]


def _sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of each section by its letter."""
    parts = re.split(r"(?m)^## ([A-Z])\. .*$", path.read_text(encoding="utf-8"))
    return {
        letter: [line for line in text.splitlines() if line.strip()]
        for letter, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _nccl(lines: list[str]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, _, releases, _, default, note = _cells(f"{line} ")
        between = _RELEASES.match(releases)
        first, last = between.groups() if between else ("2.0.5", "2.2.12")  # documented, in no public source
        successor = _SUCCESSOR.search(note)
        number = f"={default}" if re.fullmatch(r"-?\d+", default) else ""
        after = f">{successor[1]}" if successor else ""
        rows.setdefault(f"nccl {first} {last} {_kind(name, default)}", []).append(f"{name}{number}{after}")
    return rows


def _other(lines: list[str]) -> dict[str, list[str]]:
    cells = [_cells(line)[:2] for line in lines]
    names = [names for names, software in cells if not software.startswith(("libnccl", "torch"))]
    found = re.compile(r"\b[A-Z]{3,4}L_[A-Z0-9_]*\*?|\bOFI_NCCL_\*")
    return {"other": [name for line in names for name in found.findall(re.sub(r"\(.*?\)", "", line))]}


def _torch(lines: list[str]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in lines:
        names, releases, kind, *_ = _cells(line)
        alias = re.search(r"\[(NCCL_\w+)\]", names)
        kind = kind.split()[0] if kind.split()[0] in {"int", "bool", "float"} else "text"
        for name in re.findall(r"\bTORCH_(?:NCCL|FR|DIST|WATCHDOG)\w*", names.partition("[")[0]):
            row = rows.setdefault(f"torch {releases.replace('..', ' ')} {kind}", [])
            row.append(f"{name}>{alias[1]}" if alias else name)
    return rows


def listed(software: str) -> dict[str, Listed | None]:
    """Return the first and last release that reads each variable of nccl or torch, None where only the name is listed.

    One that the newest listed release reads has no last.
    """
    text = (LISTS / f"{software}.txt").read_text(encoding="utf-8")
    found: dict[str, Listed | None] = dict.fromkeys(re.findall(r"\b[A-Z]\w+", text)) if software == "torch" else {}
    for line in text.splitlines():
        if (stated := _LISTED.match(line)) and "not in the wheels" not in line:
            found[stated[1]] = Listed(_numbers(stated[2]), _numbers(stated[3]))
        elif stated:
            found[stated[1]] = None
    newest = max(between.last for between in found.values() if between)
    return {n: b._replace(last=(999,)) if b and b.last == newest else b for n, b in found.items()}


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def table() -> str:
    """Return the table."""
    nccl, torch = _sections(LISTS / "nccl.txt"), _sections(LISTS / "torch.txt")
    rows = _nccl([*nccl["A"], *nccl["B"]]) | _other(nccl["C"]) | _torch([*torch["D"], *torch["E"]])
    lines = [
        line
        for columns, names in sorted(rows.items())
        for line in textwrap.wrap(
            " ".join(sorted(names)), 119, initial_indent=f"{columns} ", subsequent_indent=f"{columns} "
        )
    ]
    head = '"""The variables of NCCL and torch; written by docs/build_variables.py, which states the columns."""'
    return f'{head}\n\nROWS = """\\\n' + "\n".join(lines) + '\n"""\n'


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is stale")
    if not parser.parse_args().check:
        TABLE.write_text(table(), encoding="utf-8")
        return 0
    return int(TABLE.read_text(encoding="utf-8") != table())


if __name__ == "__main__":
    sys.exit(main())
