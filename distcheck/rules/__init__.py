"""The rules: pure functions from a job to findings, each named after the problem it finds.

A rule is one decorated function. Its name, with dashes, is the rule; its docstring is what ``distcheck explain`` and
the docs page show: a summary line, why it hurts, how it is found, ``Fix:`` and ``See:``. Adding a rule is adding one
function to a family module and its test; nothing else is registered anywhere.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from distcheck.facts import Job, Look
from distcheck.finding import Finding, NotChecked

FAMILIES: dict[str, tuple[Look, ...]] = {
    "environment": ("environment",),
    "ranks": ("environment", "meeting"),
    "local_ranks": ("environment", "meeting"),
    "master": ("environment", "meeting"),
    "network": ("meeting", "peers"),
    "gpu": ("gpu",),
    "collectives": ("collectives",),
    "probe": ("environment", "meeting"),
}
"""Modules of rules and the looks that their rules judge, in the order in which a report shows them: causes before
consequences. A family of which nothing was looked at need not be imported."""

Outcome = Finding | NotChecked
Judge = Callable[[Job], Iterator[Outcome]]


class Rule(NamedTuple):
    """A rule as the engine, `explain` and the docs see it."""

    name: str
    family: str
    look: Look
    aliases: tuple[str, ...]
    judge: Judge

    @property
    def doc(self) -> str:
        """The whole docstring, without indentation."""
        return inspect.getdoc(self.judge) or ""

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.doc.partition("\n")[0]

    @property
    def page(self) -> str:
        """Where the docs explain the rule."""
        return f"docs/rules/{self.family}.md#{self.name}"


_registered: dict[str, Rule] = {}


def rule(look: Look, *aliases: str) -> Callable[[Judge], Judge]:
    """Register a function as a rule.

    `look` is what must have been looked at for the rule to say anything; `aliases` are other names for the problem
    in the field's catalogues that this rule covers.
    """

    def register(judge: Judge) -> Judge:
        name = judge.__name__.replace("_", "-")
        if name in _registered:
            raise ValueError(f"two rules are named {name}")
        family = judge.__module__.rpartition(".")[2]
        _registered[name] = Rule(name, family, look, aliases, judge)
        return judge

    return register


def all_rules() -> tuple[Rule, ...]:
    """Return all rules, family by family, in the order of their definition."""
    return rules_for(tuple(dict.fromkeys(look for looks in FAMILIES.values() for look in looks)))


@cache
def rules_for(looks: tuple[Look, ...]) -> tuple[Rule, ...]:
    """Import the families that judge these looks and return their rules, in the order of `all_rules`."""
    families = [family for family, judged in FAMILIES.items() if not set(looks).isdisjoint(judged)]
    for family in families:
        importlib.import_module(f"{__name__}.{family}")
    return tuple(rule for family in families for rule in _registered.values() if rule.family == family)


def find_rule(name: str) -> Rule | None:
    """Return the rule with this name or alias, None when there is none."""
    return _registered.get(name) or next((r for r in all_rules() if name == r.name or name in r.aliases), None)
