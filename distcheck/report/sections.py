"""Shared by the human-readable reports: findings and what was not checked, grouped and folded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from distcheck.facts.ranges import fold, numbered
from distcheck.report.harmless import harmless, storable
from distcheck.report.node_names import fold_nodes
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, NotChecked, Severity
from distcheck.rules.wording import grouped

CASES = 8
"""Findings of one rule that are listed."""
DETAILED = 3
"""Findings of one rule that are listed with evidence."""
PROSE = 400
"""Most characters of a *why*; `distcheck explain` prints the whole text."""
_MOST_LINES, _WIDEST = 12, 200
"""Of evidence, and the characters of a line."""
PIECES = 40
"""Most ranges in a folded list of ranks."""
_HOW = re.compile(r"(?<=[.`]) Found (?=by|from|in|on|when|where|while)")
"""Where a rule's prose begins to say how the problem is found."""


class Case(NamedTuple):
    """One message of a rule, and the ranks and nodes that it applies to."""

    message: str
    where: str
    evidence: dict[str, Any]


class Problem(NamedTuple):
    """All findings of one rule with one severity."""

    severity: Severity
    confirmed: bool
    rule: str
    where: str
    """The ranks and nodes, folded."""
    cases: tuple[Case, ...]
    """One per message; only the first `CASES` unless everything is shown."""
    more: int
    """Number of messages not in `cases`."""
    why: str
    fixes: tuple[Fix, ...]

    @property
    def messages(self) -> int:
        """How many different messages there are."""
        return len(self.cases) + self.more

    @property
    def title(self) -> str:
        """Its severity, rule, and whether it is certain."""
        return harmless(f"{self.severity}: {self.rule}{'' if self.confirmed else ' (not confirmed)'}")


class Gap(NamedTuple):
    """What was not checked for one reason."""

    reason: str
    required: bool
    rules: tuple[str, ...]
    where: str


def problems(findings: Iterable[Finding], *, everything: bool = False) -> list[Problem]:
    """Group findings by rule, in their order; info findings only when everything is shown."""
    shown = [finding for finding in findings if finding.severity != "info" or everything]
    groups = grouped(shown, lambda finding: (finding.severity, finding.confirmed, finding.rule))
    return [_problem(group, everything=everything) for group in groups.values()]


def _problem(group: list[Finding], *, everything: bool) -> Problem:
    by_message = grouped(group, lambda finding: finding.message)
    shown = list(by_message.items())[: None if everything else CASES]
    return Problem(
        severity=group[0].severity,
        confirmed=group[0].confirmed,
        rule=group[0].rule,
        where=_place(group),
        cases=tuple(Case(message, _place(same), same[0].evidence) for message, same in shown),
        more=len(by_message) - len(shown),
        why=why(group[0].rule),
        fixes=_fixes([finding.fix for _, same in shown for finding in same]),
    )


def _fixes(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Merge fixes with the same text; keep all their commands."""
    by_text = grouped(fixes, lambda fix: fix.text).items()
    return tuple(Fix(text, tuple(dict.fromkeys(chain(*(fix.commands for fix in same))))) for text, same in by_text)


def why(rule: str) -> str:
    """Return the consequence of a problem: the rule's prose up to how it is found, else its summary."""
    from distcheck.rules import find_rule

    known = find_rule(rule)
    if known is None:
        return ""
    paragraphs = [" ".join(p.split()).replace("``", "`") for p in known.doc.split("\n\n")]
    prose = _HOW.split(paragraphs[1])[0] if len(paragraphs) > 1 else ""
    if not prose or prose.startswith(("Fix:", "See:")):
        return paragraphs[0]
    return prose if len(prose) <= PROSE else prose[: prose.rfind(". ", 0, PROSE) + 1] or paragraphs[0]


def gaps(not_checked: Iterable[NotChecked]) -> list[Gap]:
    """Group what was not checked by reason; required checks first."""
    groups = grouped(not_checked, lambda unlooked: (unlooked.required, unlooked.reason))
    ordered = sorted(groups.items(), key=lambda item: not item[0][0])
    return [
        Gap(reason, required, tuple(dict.fromkeys(n.rule for n in group)), _place(group))
        for (required, reason), group in ordered
    ]


def shown_gaps(diagnosis: Diagnosis, *, quiet: bool) -> list[Gap]:
    """Return what was not checked; with `quiet`, only what makes the verdict unknown."""
    unknown = diagnosis.verdict.name == "unknown"
    return gaps(n for n in diagnosis.not_checked if not quiet or (unknown and n.required))


def _place(outcomes: Iterable[Finding | NotChecked]) -> str:
    several = list(outcomes)
    return where((rank for one in several for rank in one.ranks), (node for one in several for node in one.nodes))


def where(ranks: Iterable[int], nodes: Iterable[str]) -> str:
    """Return ranks and nodes, folded: ranks 0-7,16 on node[1-2]."""
    numbers, names = set(ranks), set(nodes)
    parts = [numbered(numbers, PIECES)] if numbers else []
    parts += [harmless(fold_nodes(names))] if names else []
    return " on ".join(parts)


def evidence_lines(evidence: dict[str, Any], *, everything: bool, said: str = "") -> list[str]:
    """Return evidence as `name: value` lines; unless `everything`, cut and without what the message `said`."""
    lines: list[str] = []
    for name, value in evidence.items():
        if not everything and _repeats(value, said):
            continue
        first, *more = _value(value).splitlines() or [""]
        lines.append(harmless(f"{name}: {first}"))
        lines += [harmless(f"  {line}") for line in more]
    if everything:
        return lines
    cut = [line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…" for line in lines[:_MOST_LINES]]
    return cut + ([f"… {len(lines) - _MOST_LINES} more (-v shows them)"] if len(lines) > _MOST_LINES else [])


def _repeats(value: Any, said: str) -> bool:
    """Return whether a message contains a value, or every item of a list, as words of their own."""
    items = value if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items):
        return False
    return all(re.search(rf"(?<![\w.]){re.escape(str(item))}(?!\w|\.\w)", said) for item in items if str(item))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        numbers = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
        if len(numbers) == len(value) > 2 and sorted(set(numbers)) == numbers:
            return fold(numbers)
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool | int | float):
        return "-" if value is None else str(value)
    return msgspec.json.encode(storable(value)).decode()
