"""The command explain: a rule's docstring, the cause that logs show, or what Flight Recorder dumps show."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from distcheck.cli.command import command
from distcheck.cli.publish import print_to
from distcheck.cli.rule_names import search, unknown
from distcheck.cli.starting import described, starts_of
from distcheck.facts.errors import UsageError
from distcheck.facts.quantities import count
from distcheck.facts.touch import touch
from distcheck.rules import FAMILIES, Rule, all_rules, find_rule

SHOWN = 20
"""Rules that a search lists."""
_REMEDY = "redirect it to a file on a disk with free space: distcheck explain … > FILE"


@command("Explain a rule, or the errors in a log.", "distcheck explain --log job.log")
def explain(
    rule: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE|WORD",
            help="Name of a rule, or words to search for; after --log or --flight, more paths.",
        ),
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
        typer.Option(
            metavar="FILE|DIR",
            help="What --save wrote: with --flight, to name the node of each rank; with --upgrade, the job.",
        ),
    ] = None,
    upgrade: Annotated[
        str,
        typer.Option(
            metavar="torch=A..B,nccl=A..B",
            help="Tell what other releases change for the job of --job.",
        ),
    ] = "",
    format: Annotated[  # noqa: A002  # the option's name
        str, typer.Option(metavar="NAME", help="How to print the cause: text, json or markdown.")
    ] = "text",
) -> None:
    """Explain a rule: what it means, its consequence, how it is found and how to fix it.

    With other words, list the rules about them, and how distcheck is started with a launcher of that name. Without
    RULE, list all rules. With --log, name the most likely cause of a failed job: exit code 0 if it is
    known, else 20. With --flight, name the rank that holds up the others: exit code 0 if there is one, else 20.
    """
    if log and flight:
        raise UsageError("give --log or --flight, not both")
    if job and not flight and not upgrade:
        raise UsageError("--job names the nodes of --flight, or the job of --upgrade; give one of them too")
    if upgrade:
        raise typer.Exit(_upgrade(upgrade, job or [], [*(rule or []), *map(str, [*(log or []), *(flight or [])])]))
    if log:
        raise typer.Exit(_log(_paths(log, rule or [], "--log"), format))
    if flight:
        raise typer.Exit(_flight(_paths(flight, rule or [], "--flight"), job or [], format))
    _print(explanation(" ".join(rule)) if rule else listing())


def explanation(words: str) -> str:
    """Return the explanation of a rule, by its name or an alias, or what is known about other words.

    Raises:
        UsageError: no rule has this name, and none is about the words; the message lists similar names.
    """
    rule = find_rule(words)
    if rule is not None:
        return _explained(rule)
    starts, found = starts_of(words), search(words)
    if not starts and not found:
        raise UsageError(f"no rule is about {words!r}; {unknown(words)}")
    if not starts and len(found) == 1:
        return _explained(found[0])
    lines = [described(starts), ""] if starts else []
    if found:
        lines += [_listed(f"{count(len(found), 'rule')} about {words}", found[:SHOWN])]
    if len(found) > SHOWN:
        lines += [f"… {len(found) - SHOWN} more; list all rules with: distcheck explain"]
    return "\n".join([*lines, "distcheck explain RULE explains a rule", ""])


def _explained(rule: Rule) -> str:
    also = f" (also {', '.join(rule.aliases)})" if rule.aliases else ""
    return f"{rule.name}{also}\n{rule.record}\n\n{rule.doc.replace('``', '`')}\n\n{rule.page}\n"


def listing() -> str:
    """Return all rules with their summaries, family by family."""
    families = {family: [rule for rule in all_rules() if rule.family == family] for family in FAMILIES}
    return "\n".join(_listed(family, rules) for family, rules in families.items() if rules)


def _listed(title: str, rules: list[Rule]) -> str:
    width = max(len(rule.name) for rule in rules)
    lines = [f"  {rule.name:{width}}  {rule.summary.replace('``', '`')}" for rule in rules]
    return "\n".join([title, *lines, ""])


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
    from distcheck.explain.answer import explained
    from distcheck.explain.rendering import RENDERERS

    _check_format(form, RENDERERS)
    answer = explained(paths)
    _print(RENDERERS[form](answer))
    return answer.exit_code


def _flight(paths: list[Path], jobs: list[Path], form: str) -> int:
    """Print the answer to Flight Recorder dumps and return the exit code."""
    from distcheck.explain.flight.answer import flight_explained
    from distcheck.explain.flight.rendering import FLIGHT_RENDERERS

    _check_format(form, FLIGHT_RENDERERS)
    answer = flight_explained(paths, jobs)
    _print(FLIGHT_RENDERERS[form](answer))
    return answer.exit_code


def _upgrade(spec: str, jobs: list[Path], others: list[str]) -> int:
    """Print what an upgrade changes and return the exit code."""
    from distcheck.explain.upgrade import upgrade
    from distcheck.facts.saved import load_launch

    if others:
        raise UsageError(f"give --upgrade or {others[0]}, not both")
    if not jobs:
        raise UsageError("--upgrade: give the job with --job FILE, as distcheck env --save FILE writes it on its ranks")
    _print(upgrade(spec, load_launch(jobs), f"the job of {', '.join(map(str, jobs))}"))
    return 0


def _print(text: str) -> None:
    print_to(sys.stdout, text, _REMEDY)


def _check_format(form: str, known: Mapping[str, object]) -> None:
    if form not in known:
        raise UsageError(f"--format {form}: choose one of {', '.join(known)}. See: distcheck explain --help")
