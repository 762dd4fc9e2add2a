"""Finds the rules whose explanations quote an error message of a job's log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from distcheck.rules import Rule, all_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PASSAGE = re.compile(r"\n\n(?:Found (?:by|through|from)|Fix:|See:)")
"""Where a docstring stops quoting messages that the user sees."""
_QUOTED = re.compile(r"``(.+?)``|\"(.+?)\"", re.DOTALL)
_VARIABLE = re.compile(r"\s*(?:\.\.\.|…)\s*|X{3,}|0x[0-9a-fA-F]+|[0-9]+")
"""Parts that differ between occurrences of a message."""
_FEWEST_LETTERS = 8
_FEWEST_WORDS = 3
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 400
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Message(NamedTuple):
    """An error message as the rules quote it."""

    text: str
    anchor: bytes
    """Its longest constant part, in lower case; searched first because that is fast."""
    pattern: re.Pattern[str]
    rules: tuple[Rule, ...]


class LogMatch(NamedTuple):
    """The first line of a log that contains a message."""

    message: Message
    line_number: int
    line: str
    times: int


def messages(rules: Iterable[Rule] | None = None) -> tuple[Message, ...]:
    """Return every message that the explanations quote, with the rules that quote it."""
    quoted: dict[str, list[Rule]] = {}
    for rule in all_rules() if rules is None else rules:
        for text in dict.fromkeys(_quotes(rule)):
            quoted.setdefault(text, []).append(rule)
    return tuple(
        Message(text, _anchor(text).lower().encode(), _pattern(text), tuple(rules)) for text, rules in quoted.items()
    )


def search(log: BinaryIO, known: Iterable[Message]) -> list[LogMatch]:
    """Return the messages that a log contains, in order of first occurrence."""
    found: dict[Message, LogMatch] = {}
    known = tuple(known)
    number = 1
    for chunk in _whole_lines(log):
        lowered = chunk.lower()
        for message in [m for m in known if m.anchor in lowered]:
            for offset, raw in enumerate(chunk.split(b"\n")):  # the \r of a progress bar does not end a line
                if message.anchor not in raw.lower():
                    continue
                line = _ESCAPES.sub("", raw.decode("utf-8", "replace"))
                if message.pattern.search(line):
                    first = found.get(message) or LogMatch(message, number + offset, line.strip()[:_LONGEST_LINE], 0)
                    found[message] = first._replace(times=first.times + 1)
        number += chunk.count(b"\n")
    return sorted(_most_telling(found.values()), key=lambda f: f.line_number)


def tell(found: list[LogMatch], name: str) -> str:
    """Return the messages that were found, with the rules that may explain them."""
    if not found:
        return f"{name}: contains none of the error messages that the rules know\n"
    width = max(len(rule.name) for f in found for rule in f.message.rules)
    parts = []
    for message, number, line, times in found:
        more = f" ({times} times)" if times > 1 else ""
        rules = [f"  {rule.name:{width}}  {rule.summary.replace('``', '`')}" for rule in message.rules]
        parts += [f"{name}:{number}{more}: {_printable(line)}", *rules, ""]
    return "\n".join([*parts, "`distcheck explain RULE` has details; `distcheck gate` checks which rule applies.", ""])


def _quotes(rule: Rule) -> Iterator[str]:
    passage = _PASSAGE.split(rule.doc, maxsplit=1)[0]
    for match in _QUOTED.finditer(passage):
        text = " ".join((match[1] or match[2]).split()).rstrip(".")
        telling = len(text.split()) >= _FEWEST_WORDS and len(_anchor(text)) >= _FEWEST_LETTERS
        if telling and not text.startswith(("-", "$", "srun ", "mpirun ", "nvidia-smi ")):
            yield text


def _anchor(text: str) -> str:
    return max(_VARIABLE.split(text), key=len)


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that matches a message with any numbers, and any text for an ellipsis."""
    parts, end = [], 0
    for variable in _VARIABLE.finditer(text):
        parts.append(re.escape(text[end : variable.start()]))
        anything = variable[0].strip() in {"...", "…"} or variable[0].startswith("X")
        parts.append(".*?" if anything else "(?:0x)?[0-9a-fA-F]+")
        end = variable.end()
    parts.append(re.escape(text[end:]))
    return re.compile("".join(parts), re.IGNORECASE)


def _most_telling(found: Iterable[LogMatch]) -> list[LogMatch]:
    """Drop messages that are part of a longer one on the same line; merge their rules into it."""
    kept: list[LogMatch] = []
    for one in sorted(found, key=lambda f: -len(f.message.anchor)):
        beside = next((k for k in kept if k.line_number == one.line_number), None)
        if beside is None:
            kept.append(one)
            continue
        rules = tuple(dict.fromkeys((*beside.message.rules, *one.message.rules)))
        kept[kept.index(beside)] = beside._replace(message=beside.message._replace(rules=rules))
    return kept


def _whole_lines(log: BinaryIO) -> Iterator[bytes]:
    """Yield a log in pieces of whole lines; a line longer than a piece is cut."""
    rest = b""
    while chunk := log.read(_CHUNK_BYTES):
        head, newline, rest_of = (rest + chunk).rpartition(b"\n")
        if newline:
            yield head + newline
            rest = rest_of
        else:
            rest = (rest + chunk)[-_CHUNK_BYTES:]
    if rest:
        yield rest


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)
