"""What the site's policy makes of findings: ignored, of another severity, or only observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from distcheck.rules import Rule, find_rule
from distcheck.rules.finding import Finding, NotChecked, Verdict, verdict

if TYPE_CHECKING:
    from distcheck.facts.asked import Asked
    from distcheck.facts.policy import RuleSetting

HELD_BACK = (10, 20, 30, 40)
"""Exit codes that become 0 in mode observe: those of a verdict. The others say that there is none."""


def setting(asked: Asked, names: Sequence[str], node: str = "") -> RuleSetting | None:
    """Return what the policy sets for a rule, by its name and aliases, on a node."""
    rules = asked.site(node).rule
    return next((rules[name] for name in names if name in rules), None)


def ignored(asked: Asked, names: Sequence[str], nodes: Sequence[str] = ()) -> str:
    """Return why a rule is ignored on all of these nodes, without nodes where the run is judged; '' if it is not."""
    if asked.policy is None:
        return ""
    found = [setting(asked, names, node) for node in nodes or ("",)]
    day = asked.policy.day
    if not all(one is not None and one.ignore and not one.ended(day) for one in found) or found[0] is None:
        return ""
    until = f", until {found[0].until}" if found[0].until else ""
    return f"ignored by the site's policy: {found[0].ignore}{until}"


def ignored_everywhere(asked: Asked, rule: Rule) -> str:
    """Return why a rule is not judged at all; '' if it is."""
    if asked.policy is None:
        return ""
    names = (rule.name, *rule.aliases)
    some = any(section.nodes and not section.rule.keys().isdisjoint(names) for section in asked.policy.sections)
    return "" if some else ignored(asked, names)


def as_set(
    asked: Asked, rule: Rule, findings: Sequence[Finding], gaps: Sequence[NotChecked]
) -> tuple[list[Finding], list[NotChecked]]:
    """Return what a rule said as the policy has it: without what is ignored, and with the severity that it sets."""
    names = (rule.name, *rule.aliases)
    kept: list[Finding] = []
    unlooked: list[NotChecked] = []
    for gap in gaps:
        why = ignored(asked, names, gap.nodes)
        unlooked.append(msgspec.structs.replace(gap, reason=why, required=False) if why else gap)
    for finding in findings:
        if finding.rule != rule.name:  # the rule crashed
            kept.append(finding)
        elif why := ignored(asked, names, finding.nodes):
            unlooked.append(NotChecked(rule=rule.name, nodes=finding.nodes, reason=why, required=False))
        else:
            found = [setting(asked, names, node) for node in finding.nodes or ("",)]
            severity = found[0].severity if found[0] and finding.severity != "info" else None
            spared = tuple(
                node for node in finding.nodes if ignored(asked, names, (node,)) or _observes(asked, names, node)
            )
            kept.append(
                msgspec.structs.replace(
                    finding,
                    severity=severity or finding.severity,
                    spared=spared,
                    observed=finding.scope != "tool"
                    and (set(spared) == set(finding.nodes) if finding.nodes else _observes(asked, names, "")),
                )
            )
    return kept, unlooked


def _observes(asked: Asked, names: Sequence[str], node: str) -> bool:
    return asked.mode_of(names, node) == "observe"


def _names(gap: NotChecked) -> tuple[str, ...]:
    rule = find_rule(gap.rule)
    return (rule.name, *rule.aliases) if rule is not None else (gap.rule,)


def held_back(
    asked: Asked, whole: Verdict, findings: Sequence[Finding], gaps: Sequence[NotChecked], *, strict: bool, lone: bool
) -> tuple[Verdict, Verdict | None]:
    """Return the verdict without what is only observed, and the whole one, if that has another exit code."""
    deciding = [finding for finding in findings if not finding.observed]
    required = [gap for gap in gaps if not all(_observes(asked, _names(gap), node) for node in gap.nodes or ("",))]
    end = verdict(deciding, required, strict=strict, lone=lone)
    if whole.exit_code not in HELD_BACK or end.exit_code == whole.exit_code:
        return whole, None
    return Verdict("warn", 0) if end.exit_code == 0 else end, whole
