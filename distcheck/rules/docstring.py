"""What a rule's docstring says: its summary, why it matters, how it is found, its fix, and where to read on."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distcheck.rules.finding import Fix

_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)(?:\|([^{}]*))?\}")
"""{name} or {name|what stands there if the value is unknown}; not a variable of the shell."""


def docstring(function: Callable[..., Any]) -> str:
    """Return a function's docstring without indentation; from its source if Python has dropped it (-OO)."""
    return inspect.getdoc(function) or ast.get_docstring(_definition(function)) or ""


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(definition, ast.FunctionDef)  # noqa: S101 a rule is one
    return definition


def fix_in(doc: str) -> Fix:
    """Return the fix of a docstring: the sentence after ``Fix:``, and the commands that are indented below it."""
    passage, _, rest = doc.partition("\n\nFix: ")[2].partition("\n\n")
    text = " ".join(passage.partition("\nSee: ")[0].split()).replace("``", "")
    commands = rest.partition("\n\n")[0].splitlines() if rest.startswith(" ") else []
    text = text if passage.startswith("``") else text[:1].upper() + text[1:]  # export, not Export
    return Fix(text, tuple(command.strip() for command in commands))


def filled(fix: Fix, values: Mapping[str, tuple[str, ...]]) -> Fix:
    """Return a fix with values in its commands; a command is given for each value of a name, without any not at all."""
    return Fix(fix.text, tuple(line for command in fix.commands for line in _each(command, values)))


def without_values(doc: str) -> str:
    """Return a text with what stands for each unknown value: GPU for {gpu}."""
    return _PLACEHOLDER.sub(lambda found: found[2] or found[1].upper(), doc)


def _each(command: str, values: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    used = [values[name] for name, _ in _PLACEHOLDER.findall(command) if name in values]
    for n in range(max(map(len, used), default=1)):
        yield _PLACEHOLDER.sub(lambda found, n=n: _value(found, values, n), command)  # type: ignore[misc]


def _value(found: re.Match[str], values: Mapping[str, tuple[str, ...]], n: int) -> str:
    known = values.get(found[1])
    return known[min(n, len(known) - 1)] if known else found[2] or found[0]
