"""Write distcheck/rules/nccl/variables.py from the lists in docs/variables; with --check only compare.

Usage: python docs/build_variables.py [--check]

docs/variables/nccl.txt lists the variables that the releases of NVIDIA/nccl read, with the first and last release that
reads each, and the names that belong to other software; docs/variables/torch.txt those of torch. Their heads state how
they were made. The table has one variable a line, its columns separated by |:

- nccl, name, int, text, level or flag, first release, last release, default if it is a number, successor
- other, name or prefix*, the software that reads it
- torch, name, int, bool or text, deprecated name
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

LISTS = Path(__file__).resolve().parent / "variables"
TABLE = LISTS.parent.parent / "distcheck" / "rules" / "nccl" / "variables.py"
_STRTOL = {"NCCL_COLLNET_ENABLE", "NCCL_P2P_DISABLE"}
"""Read as text and then through strtol (src/init.cc, src/graph/paths.cc)."""
_RELEASES = re.compile(r"(\d+\.\d+\.\d+)\.\.(\d+\.\d+\.\d+)")
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


def _nccl(lines: list[str]) -> list[str]:
    rows = []
    for line in lines:
        name, _, releases, _, default, note = _cells(f"{line} ")
        between = _RELEASES.match(releases)
        first, last = between.groups() if between else ("2.0.5", "2.2.12")  # documented, in no public source
        successor = _SUCCESSOR.search(note)
        number = default if re.fullmatch(r"-?\d+", default) else ""
        rows.append(
            "|".join(("nccl", name, _kind(name, default), first, last, number, successor[1] if successor else ""))
        )
    return rows


def _other(lines: list[str]) -> list[str]:
    rows = []
    for line in lines:
        names, software = _cells(line)[:2]
        if software.startswith(("libnccl", "torch")):
            continue
        found = re.findall(r"\b[A-Z]{3,4}L_[A-Z0-9_]*\*?|\bOFI_NCCL_\*", re.sub(r"\(.*?\)", "", names))
        rows += [f"other|{name}|{software.partition(' [')[0].partition(' (')[0]}" for name in found]
    return rows


def _torch(lines: list[str]) -> list[str]:
    rows = []
    for line in lines:
        names, kind = _cells(line)[:2]
        alias = re.search(r"\[(NCCL_\w+)\]", names)
        kind = kind.split()[0] if kind.split()[0] in {"int", "bool"} else "text"
        rows += [
            f"torch|{name}|{kind}|{alias[1] if alias else ''}"
            for name in re.findall(r"\bTORCH_(?:NCCL|FR|DIST)\w*", names.partition("[")[0])
        ]
    return rows


def table() -> str:
    """Return the table."""
    nccl, torch = _sections(LISTS / "nccl.txt"), _sections(LISTS / "torch.txt")
    rows = [*_nccl(nccl["A"]), *_nccl(nccl["B"]), *_other(nccl["C"]), *_torch(torch["D"]), *_torch(torch["E"])]
    head = '"""The variables of NCCL and torch; written by docs/build_variables.py, which states the columns."""'
    return f'{head}\n\nROWS = """\\\n' + "\n".join(rows) + '\n"""\n'


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
