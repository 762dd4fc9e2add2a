"""Prints the explanation of a rule, which is its docstring."""

from __future__ import annotations

import difflib

from distcheck.rules import FAMILIES, Rule, all_rules, find_rule


def explain(name: str) -> str:
    """Return the explanation of a rule, by its name or an alias.

    Raises:
        LookupError: no rule has this name; the message lists similar names.
    """
    rule = find_rule(name)
    if rule is None:
        raise LookupError(_unknown(name))
    also = f" (also {', '.join(rule.aliases)})" if rule.aliases else ""
    return f"{rule.name}{also}\n{rule.record}\n\n{rule.doc.replace('``', '`')}\n\n{rule.page}\n"


def listing() -> str:
    """Return all rules with their summaries, family by family."""
    families = {family: [rule for rule in all_rules() if rule.family == family] for family in FAMILIES}
    return "\n".join(_family(family, rules) for family, rules in families.items() if rules)


def _family(family: str, rules: list[Rule]) -> str:
    width = max(len(rule.name) for rule in rules)
    lines = [f"  {rule.name:{width}}  {rule.summary.replace('``', '`')}" for rule in rules]
    return "\n".join([family, *lines, ""])


def _unknown(name: str) -> str:
    known = [known for rule in all_rules() for known in (rule.name, *rule.aliases)]
    close = difflib.get_close_matches(name, known, n=3) or [k for k in known if name and name in k][:3]
    hint = f"similar: {', '.join(close)}" if close else "`distcheck explain` lists all rules"
    return f"no rule is named {name!r}; {hint}"
