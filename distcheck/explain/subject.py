"""What a rule concerns, and the command that looks for what it names."""

from __future__ import annotations

from distcheck.explain.spelling import About
from distcheck.rules import FAMILIES, Rule, find_rule

_ABOUT: dict[str, About] = {
    "network": "network",
    "fabric": "network",
    "collectives": "network",
    "gpu": "GPU",
    "environment": "start-up",
    "mesh": "start-up",
    "launchers": "start-up",
    "engines": "start-up",
    "nccl": "start-up",
    "host": "start-up",
    "hang": "application",
}
"""By the folder of the rule's family."""
_COMMANDS = {
    "launch": "net",
    "environment": "env",
    "meeting": "net",
    "peers": "net",
    "gpu": "gpu",
    "node": "node",
    "training": "gate --step",
    "hang": "hang",
}
"""The first command that has the look of a rule; gate has all."""


def about(name: str) -> About:
    """Return the class of a rule's problem."""
    if name.startswith("host-oom"):
        return "process killed"
    return _ABOUT[known_rule(name).family.split(".")[0]]


def command(name: str) -> str:
    """Return the name of distcheck's command that judges a rule."""
    rule = known_rule(name)
    return "gate -- COMMAND" if FAMILIES[rule.family].option == "told" else _COMMANDS.get(rule.look, "gate")


def known_rule(name: str) -> Rule:
    """Return a rule that the tables name."""
    rule = find_rule(name)
    if rule is None:
        raise LookupError(f"no rule is named {name}")
    return rule
