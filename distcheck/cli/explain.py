"""The command explain: a rule's docstring, the cause that logs show, or what Flight Recorder dumps show."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from distcheck.cli.command import command
from distcheck.cli.publish import print_to
from distcheck.facts.errors import UsageError
from distcheck.facts.touch import touch
from distcheck.rules import FAMILIES, Rule, all_rules, find_rule

_REMEDY = "redirect it to a file on a disk with free space: distcheck explain … > FILE"


@command("Explain a rule, or the errors in a log.", "distcheck explain --log job.log")
def explain(
    rule: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE]", help="Name of a rule; after --log or --flight, more paths.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Name the cause that a job's log shows: a file, a directory, or - for standard input. Repeatable.",
        ),
    ] = None,
    flight: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Tell which rank holds up the others, from torch's Flight Recorder dumps: a directory or a file."
            " Repeatable.",
        ),
    ] = None,
    job: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE|DIR", help="With --flight: what --save wrote, to name the node of each rank."),
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        str, typer.Option(metavar="NAME", help="How to print the cause: text, json or markdown.")
    ] = "text",
) -> None:
    """Explain a rule: what it means, its consequence, how it is found and how to fix it.

    Without RULE, list all rules. With --log, name the most likely cause of a failed job: exit code 0 if a rule
    names it, else 20. With --flight, name the rank that holds up the others: exit code 0 if there is one, else 20.
    """
    if log and flight:
        raise UsageError("give --log or --flight, not both")
    if job and not flight:
        raise UsageError("--job names the nodes of --flight; give --flight too")
    if log:
        raise typer.Exit(_log(_paths(log, rule or [], "--log"), format))
    if flight:
        raise typer.Exit(_flight(_paths(flight, rule or [], "--flight"), job or [], format))
    if rule and len(rule) > 1:
        raise UsageError(f"give one rule, not {len(rule)}")
    if rule:
        try:
            text = explanation(rule[0])
        except LookupError as error:
            raise UsageError(str(error.args[0])) from None
    else:
        text = listing()
    _print(text)


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


def _paths(given: list[Path], words: list[str], option: str) -> list[Path]:
    """Return the paths of --log or --flight and those that follow, as `--log *.log` of a shell gives them."""
    for word in [*map(str, given), *words]:
        try:
            there = touch(word, option, partial(os.path.exists, word))
        except TimeoutError as error:
            raise UsageError(f"{option} {word}: {error.strerror}; copy it to another file system") from None
        if word in words and not there:
            raise UsageError(f"give a rule ({word}) or {option}, not both")
    return [*given, *map(Path, words)]


def _log(paths: list[Path], form: str) -> int:
    """Print the answer to logs and return the exit code."""
    from distcheck.cli.joblog.answer import explained
    from distcheck.cli.joblog.rendering import RENDERERS

    _check_format(form, RENDERERS)
    answer = explained(paths)
    _print(RENDERERS[form](answer))
    return answer.exit_code


def _flight(paths: list[Path], jobs: list[Path], form: str) -> int:
    """Print the answer to Flight Recorder dumps and return the exit code."""
    from distcheck.cli.flight.answer import flight_explained
    from distcheck.cli.flight.rendering import FLIGHT_RENDERERS

    _check_format(form, FLIGHT_RENDERERS)
    answer = flight_explained(paths, jobs)
    _print(FLIGHT_RENDERERS[form](answer))
    return answer.exit_code


def _print(text: str) -> None:
    print_to(sys.stdout, text, _REMEDY)


def _check_format(form: str, known: Mapping[str, object]) -> None:
    if form not in known:
        raise UsageError(f"--format {form}: choose one of {', '.join(known)}. See: distcheck explain --help")
