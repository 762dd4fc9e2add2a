"""The tables of known errors, as text: a header per answer, and below it the wordings that lead to it, one per line.

::

    store = https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d
    [net-port-in-use net-port-in-use-by-peer-job] network, cause <{{store}}/socket.cpp>
      failed to bind to .*errno: 98
      @near init_process_group
      <<bind | listen>>: Address already in use

    [] application, consequence #collective <{{store}}/ProcessGroupNCCL.cpp>
    "A collective timed out."
      Watchdog caught collective operation timeout

A header has the rules that name the cause (the most likely first), the class, the weight, ``fallback`` for wordings
that count only on lines that no other has, tags (what the code asks of an answer) and sources. Of two answers to one
line with the same weight the one with a ``+`` leads. Where no rule names the cause, a sentence follows.

A wording is a regular expression; ``<<a | b>>`` stands for a wording with each of these. ``@near``, ``@unless`` and
``@trace`` give what the lines around it must or must not have, and ``@only`` a predicate. They hold for the wordings
below them, up to the next ``@`` or header.
``NAME = TEXT`` replaces ``{{NAME}}`` in the rest of the file. The order of wordings and of files means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from distcheck.explain.known.predicates import PREDICATES
from distcheck.explain.spelling import WEIGHTS, About, Pattern, Spelling, told

_HEADER = re.compile(
    r"\[(?P<rules>[a-z0-9 -]*)\] (?P<about>[\w -]+), (?P<weight>\w+)(?P<first>\+*)(?P<fallback>, fallback)?"
    r"(?P<tags>(?: #[a-z-]+)*)(?P<sources>(?: <https://[^\s>]+>)+)"
)
_NAME = re.compile(r"([a-z][a-z0-9-]*) = (.+)")
_USE = re.compile(r"\{\{([a-z0-9-]+)\}\}")
_EACH = re.compile(r"<<(.+?)>>")
_CONDITIONS: dict[str, Callable[[str], Any]] = {
    "near": Pattern, "unless": Pattern, "trace": Pattern, "only": PREDICATES.__getitem__,
}  # fmt: skip


@cache
def known() -> tuple[Spelling, ...]:
    """Return the wordings of all tables."""
    tables = sorted((file for file in files(__name__).iterdir() if file.name.endswith(".txt")), key=lambda f: f.name)
    return tuple(spelling for table in tables for spelling in read(table.read_text("utf-8"), table.name))


def read(text: str, name: str) -> Iterator[Spelling]:
    """Yield the wordings of a table.

    Raises:
        ValueError: a line is not as described above; the message has the name of the table and the line's number.
    """
    table = _Table()
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            yield from table.take(_USE.sub(lambda use: table.names.get(use[1], use[0]), line))
        except (ValueError, LookupError) as error:
            raise ValueError(f"{name}:{number}: {error}: {line}") from error


class _Table:
    """What the lines so far say of the next wording."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._answer: dict[str, Any] = {}
        """What the wordings below a header have in common, by the names of a spelling's fields."""
        self._conditions: dict[str, Any] = {}
        self._begun = False
        """Whether a wording follows the conditions, so that the next condition replaces them."""

    def take(self, line: str) -> Iterator[Spelling]:
        """Yield the wordings of a line."""
        if not line or line.startswith("#"):
            return
        if definition := _NAME.fullmatch(line):
            self.names[definition[1]] = definition[2]
        elif line.startswith("["):
            self._answer, self._conditions, self._begun = _answer(line), {}, False
        elif line.startswith('"'):
            self._answer["says"] = line.strip('"')
        elif line.startswith("  @"):
            self._conditions = ({} if self._begun else self._conditions) | _condition(line[3:])
            self._begun = False
        elif line.startswith("  ") and self._answer:
            if bool(self._answer["says"]) == bool(self._answer["rules"]):
                raise ValueError("an answer has rules or a sentence")
            self._begun = True
            for pattern in _each(line[2:]):
                yield told(pattern, **self._answer, **self._conditions)
        else:
            raise ValueError("this is no header, name, sentence or wording")


def _answer(line: str) -> dict[str, Any]:
    header = _HEADER.fullmatch(line)
    if header is None or header["about"] not in get_args(About):
        raise ValueError("expected [RULES] CLASS, WEIGHT #TAGS <SOURCE>")
    return {
        "rules": header["rules"],
        "says": "",
        "about": header["about"],
        "weight": WEIGHTS[header["weight"]],
        "first": len(header["first"]),
        "fallback": bool(header["fallback"]),
        "tags": frozenset(header["tags"].replace("#", "").split()),
        "sources": tuple(re.findall(r"<(.+?)>", header["sources"])),
    }


def _condition(words: str) -> dict[str, Any]:
    name, _, value = words.partition(" ")
    if name not in _CONDITIONS:
        raise ValueError(f"a condition is one of {', '.join(sorted(_CONDITIONS))}")
    return {name: _CONDITIONS[name](value)}


def _each(wording: str) -> Iterator[str]:
    each = _EACH.search(wording)
    if each is None:
        yield wording
        return
    for word in each[1].split(" | "):
        yield from _each(wording[: each.start()] + word + wording[each.end() :])
