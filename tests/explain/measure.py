"""How well `distcheck explain --log` names the cause of real logs: totals for each part of tests/explain/logs.

    python tests/explain/measure.py [--json | --write]

Logs whose cause a rule names: the right rule first, the right rule among three, only wrong rules, nothing. Logs whose
cause no rule names: no rule blamed and the right class, or not. What a reader makes of the same logs is beside it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
import measured

from distcheck.explain.answer import answer, spellings
from distcheck.explain.matching import Matcher
from distcheck.explain.reading import Log, pieces

LOGS = Path(__file__).parent / "logs"
BY_HAND = Path(__file__).parent / "by_hand.json"
"""The answers of a reader who knew the table of rules and saw of each log that was held out its lines, nothing else."""
OUTCOMES = ("right rule first", "right rule among three", "only wrong rules", "nothing")
PARTS = {"build": "used to write the tables", "held out": "held out", "fresh": "held out, third collection"}
WITHOUT_RULE = ("right class, no rule blamed", "a rule blamed", "wrong class")


@cache
def matcher() -> Matcher:
    return Matcher(spellings())


def outcome(entry: dict) -> str:
    """Return what the program makes of one log."""
    path = LOGS / f"{entry['id']}.log"
    seen = sorted(matcher().search(pieces(Log(path, path.name), []), path.name), key=lambda sighting: sighting.line)
    found = answer(seen)
    return compared(entry, [cause.rule for cause in found.causes if cause.rule], found.about)


def compared(entry: dict, rules: list[str], about: str) -> str:
    """Return how an answer, of rules or else a class, compares with the label of a log."""
    if not entry["rules"]:
        return "a rule blamed" if rules else WITHOUT_RULE[0 if about == entry["class"] else 2]
    if not rules:
        return "nothing"
    if rules[0] in entry["rules"]:
        return "right rule first"
    return "right rule among three" if set(rules) & set(entry["rules"]) else "only wrong rules"


@cache
def totals(split: str) -> Counter[str]:
    """Return the number of logs of one part by outcome."""
    return Counter(outcome(entry) for entry in _entries() if entry["split"] == split)


@cache
def totals_by_hand(split: str) -> Counter[str]:
    """Return the same of the reader's answers; empty if he has seen none of the part."""
    told = json.loads(BY_HAND.read_text())
    return Counter(
        compared(entry, told[entry["id"]]["rules"], told[entry["id"]]["class"])
        for entry in _entries()
        if entry["split"] == split and entry["id"] in told
    )


def _entries() -> list[dict]:
    return json.loads((LOGS / "index.json").read_text())


def table() -> list[str]:
    """Return the totals as a table of Markdown."""
    lines = [
        f"| part | logs with a rule | {' | '.join(OUTCOMES)} | logs without a rule | {' | '.join(WITHOUT_RULE)} |",
        "|---" * (len(OUTCOMES) + len(WITHOUT_RULE) + 3) + "|",
    ]
    for split, name in PARTS.items():
        for who, counts in ((name, totals(split)), (f"{name}, by a reader", totals_by_hand(split))):
            first, second = ([counts[outcome] for outcome in outcomes] for outcomes in (OUTCOMES, WITHOUT_RULE))
            if counts:
                lines.append("| " + " | ".join(map(str, [who, sum(first), *first, sum(second), *second])) + " |")
    return lines


def main() -> None:
    """Print the totals of all parts, never those of single logs."""
    if "--write" in sys.argv:
        command = "python tests/explain/measure.py --write"
        measured.put("docs/reliability.md", "explained logs", table(), command=command)
    parts = {split: totals(split) for split in PARTS}
    if "--json" in sys.argv:
        print(json.dumps(parts))
        return
    for split, counts in parts.items():
        for outcomes in (OUTCOMES, WITHOUT_RULE):
            logs = sum(counts[name] for name in outcomes)
            shares = [f"{name} {counts[name]} ({counts[name] / max(1, logs):.0%})" for name in outcomes]
            print(f"{split}, {logs} logs: {', '.join(shares)}")


if __name__ == "__main__":
    main()
