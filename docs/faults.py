"""The catalogued faults as docs/rules shows them: the coverage table and the page of what no rule can detect.

`tests/faults/` has one file for each section of the catalogue. Its first line is the section's title; every other line
is one fault: number | name | rule | how | test or reason. `how` says what fired the rule in that test: `process` (a
real process, its environment and files), `cluster` (a node of the test cluster), `files` (the real collector on a
recorded or made-up /sys or /proc), `library` (a fake driver or NCCL library) or `facts` (values only). It is
`undetectable` where no probe can see the fault before the job; the last column is then the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "faults"
REAL = {
    "process": "a process",
    "cluster": "a cluster node",
    "files": "made-up /sys and /proc",
    "library": "a fake library",
}
"""How a rule fired through distcheck's own collectors, and what they read."""
HOW = (*REAL, "facts", "undetectable")


class Fault(NamedTuple):
    """One fault of the catalogue: where a rule finds it, or why none does."""

    number: int
    name: str
    rule: str
    how: str
    note: str
    """The test that fires the rule; for an undetectable fault the reason."""


class Section(NamedTuple):
    """One section of the catalogue."""

    name: str
    """The name of its file."""
    title: str
    faults: tuple[Fault, ...]

    def count(self, *how: str) -> int:
        """Return how many faults are handled in one of these ways."""
        return sum(fault.how in how for fault in self.faults)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that find its faults, each once."""
        return tuple(dict.fromkeys(fault.rule for fault in self.faults if fault.how != "undetectable"))

    def fired(self, *how: str) -> int:
        """Return how many of its rules at least one test fires in one of these ways."""
        return len({fault.rule for fault in self.faults if fault.how in how})


def sections(folder: Path = FOLDER) -> tuple[Section, ...]:
    """Return the sections, in the order of their first number."""
    found = [_section(path) for path in folder.glob("*.txt")]
    return tuple(sorted(found, key=lambda section: section.faults[0].number))


def _section(path: Path) -> Section:
    title, *lines = path.read_text(encoding="utf-8").splitlines()
    faults = []
    for line in lines:
        number, name, rule, how, note = (cell.strip() for cell in line.split("|", 4))
        faults.append(Fault(int(number), name, rule, how, note))
    return Section(path.stem, title.removeprefix("# "), tuple(faults))


def coverage() -> str:
    """Return the table of how many faults of each section a rule detects, with a line for all sections."""
    lines = [
        "| section | faults | detected | rules | fired by real collectors | by facts only | not detectable |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(section) for section in (*sections(), everything())]
    return "\n".join(lines)


def everything() -> Section:
    """Return all sections as one; a rule that finds faults of two sections counts once in it."""
    return Section("", "all", tuple(fault for section in sections() for fault in section.faults))


def _row(section: Section) -> str:
    real, rules = section.fired(*REAL), len(section.rules)
    kinds = ", ".join(f"{words} {n}" for how, words in REAL.items() if (n := section.fired(how)))
    share = f"{real} ({kinds})" if section.name else f"{real}, {100 * real // rules} % ({kinds})"
    cells = (section.title, len(section.faults), section.count(*REAL, "facts"), rules, share, rules - real)
    return f"| {' | '.join(map(str, cells))} | [{section.count('undetectable')}](not-detectable.md) |"


def undetectable() -> str:
    """Return one table for each section: its undetectable faults, each with the reason."""
    parts = []
    for s in sections():
        rows = [f"| `{fault.name}` | {fault.note} |" for fault in s.faults if fault.how == "undetectable"]
        if rows:
            parts.append("\n".join([f"## {s.title}", "", "| fault | why no rule detects it |", "|---|---|", *rows]))
    return "\n\n".join(parts)
