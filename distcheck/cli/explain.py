"""The command explain: prints a rule's docstring, or the rules that explain a log."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from distcheck.cli.command import command
from distcheck.facts.errors import UsageError
from distcheck.rules import FAMILIES, Rule, all_rules, find_rule


@command("Explain a rule, or the errors in a log.", "distcheck explain gpu-duplicate")
def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="Name of a rule.")] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Name the rules that explain the errors in this job log (- is standard input)."
        ),
    ] = None,
) -> None:
    """Explain a rule: what it means, its consequence, how it is found and how to fix it.

    Without RULE, list all rules.
    """
    if log is not None and rule is not None:
        raise UsageError(f"give a rule ({rule}) or --log, not both")
    if log is not None:
        typer.echo(_log(log), nl=False)
    elif rule is not None:
        try:
            typer.echo(explanation(rule), nl=False)
        except LookupError as error:
            raise UsageError(str(error.args[0])) from None
    else:
        typer.echo(listing(), nl=False)


def explanation(name: str) -> str:
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
    close = difflib.get_close_matches(name, known, n=3) or [k for k in known if name and name in k][:8]
    hint = f"similar: {', '.join(close)}" if close else "`distcheck explain` lists all rules"
    return f"no rule is named {name!r}; {hint}"


def _log(path: Path) -> str:
    from distcheck.cli import joblog

    if path == Path("-") and sys.stdin is None:
        raise UsageError("--log -: standard input is closed")
    try:
        with sys.stdin.buffer if path == Path("-") else path.open("rb") as log:
            found = joblog.search(log, joblog.messages())
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}") from None
    return joblog.tell(found, "standard input" if path == Path("-") else str(path))
