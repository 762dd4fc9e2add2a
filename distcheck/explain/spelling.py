"""A spelling: one way in which software words a fault, and the rules that name the fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

About = Literal["start-up", "network", "GPU", "process killed", "application"]
"""What a fault concerns; the `class` of the answer."""

CAUSE, LIKELY, SYMPTOM, SHAPE, ERROR, CONSEQUENCE, HINT, GUESS, NOISE = 8, 7, 6, 5, 4, 3, 2, 1, 0
"""How much a line says about the cause. A cause goes before a symptom wherever they stand. A shape is a symptom in
words that no table has. An error is one that nothing here knows. A consequence shows that something failed, elsewhere
or earlier. A hint is also written by healthy jobs: it leads only if nothing else does. A guess has only
the form of a message about a failure: it leads after all these, and noise never."""

WEIGHTS = {
    "cause": CAUSE, "likely": LIKELY, "symptom": SYMPTOM, "shape": SHAPE, "error": ERROR, "consequence": CONSEQUENCE,
    "hint": HINT, "guess": GUESS, "noise": NOISE,
}  # fmt: skip
"""The weights as the tables write them."""

_SHORTEST_ANCHOR = 5

_TOKEN = re.compile(
    r"""(?P<literal>\\[^a-zA-Z0-9](?![*+?{])|[^\\\[\](){}.^$|*+?0-9](?![*+?{]))"""
    r"""|\\.[*+?]*|\[\^?\]?[^\]]*\][*+?]*(?:\{[^}]*\})?"""
    r"""|\((?:[^()\\]|\\.|\((?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*\))*\)[*+?]*|.(?:\{[^}]*\}|[*+?])*""",
    re.VERBOSE,
)


_AT_START = re.compile(r"(?<!\[)\^(?!\()|\(\?<!\\S\)")


class Pattern:
    """A regular expression without regard to case, compiled at its first search: a log needs few of thousands."""

    __slots__ = ("_compiled", "at_start", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at_start = bool(_AT_START.search(pattern))
        self._compiled: re.Pattern[str] | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match in the text, as `re.search` does."""
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, re.IGNORECASE)
        return self._compiled.search(text)


class Spelling(NamedTuple):
    """An error as some software words it."""

    pattern: Pattern
    anchor: bytes
    """Its longest constant part without digits, in lower case: a line without it cannot match."""
    rules: tuple[str, ...]
    """Rules that name the cause, the most likely first; empty where no rule does."""
    about: About
    weight: int = CAUSE
    says: str = ""
    """What the line means, where no rule does."""
    sources: tuple[str, ...] = ()
    """Addresses of the code or pages that have these words."""
    near: Pattern | None = None
    """What the lines around it must contain."""
    unless: Pattern | None = None
    """What they must not contain."""
    only: Callable[[Mapping[str, str]], bool] | None = None
    """Whether the values of the named groups have this meaning."""
    trace: Pattern | None = None
    """What the Python traceback that ends in the line must contain."""
    fallback: bool = False
    """Whether it counts only on lines that no other spelling matches."""
    first: int = 0
    """The higher, the earlier it leads of those of its weight that have the same line."""
    tags: frozenset[str] = frozenset()
    """What the code asks of an answer: `collective`, `time-limit`, `abort` and so on."""


def precedence(spelling: Spelling) -> tuple[object, ...]:
    """Return what decides between spellings of one line: weight, conditions, then the number of constant characters.

    Fallbacks come last, and of these noise first: it shows that the line is none of the others.
    """
    weight = spelling.weight if not spelling.fallback or spelling.weight > NOISE else CAUSE
    conditions = sum(map(bool, (spelling.near, spelling.trace, spelling.only)))
    constant = sum(map(len, _constants(spelling.pattern.pattern)))
    return (
        spelling.fallback, -weight, -spelling.first, -conditions, -constant, spelling.pattern.pattern, spelling.says,
    )  # fmt: skip


def told(pattern: str, rules: str = "", **fields: Any) -> Spelling:
    """Return a spelling with further fields; `rules` are separated by spaces.

    Raises:
        ValueError: the pattern has alternatives outside groups, or its constant part is so short that too many lines
            would have to be searched.
    """
    if len(constant := anchor(pattern)) < _SHORTEST_ANCHOR:
        raise ValueError(f"no constant part: {pattern}")
    return Spelling(Pattern(pattern), constant, tuple(rules.split()), **fields)


def anchor(pattern: str) -> bytes:
    """Return the longest constant part of a pattern outside groups, without digits, in lower case."""
    if re.search(r"(?<!\\)\|", re.sub(r"\((?:[^()\\]|\\.|\((?:[^()\\]|\\.|\([^()]*\))*\))*\)|\[[^\]]*\]", "", pattern)):
        raise ValueError(f"alternatives need a group: {pattern}")
    return max(_constants(pattern), key=len).lower().encode()


def _constants(pattern: str) -> list[str]:
    """Return the constant parts of a pattern outside groups, without digits."""
    runs = [""]
    for token in _TOKEN.finditer(pattern):
        if token["literal"]:
            runs[-1] += token["literal"].removeprefix("\\")
        else:
            runs.append("")
    return runs


@cache
def trie(words: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern that finds any of the words; branches on one byte at a time, so that many words stay fast."""
    root: dict[int, dict] = {}  # type: ignore[type-arg]  # nested without end
    for word in words:
        node = root
        for byte in word:
            node = node.setdefault(byte, {})
        node[-1] = {}
    return re.compile(_branches(root))


def _branches(node: dict) -> bytes:  # type: ignore[type-arg]
    if -1 in node:
        return b""
    parts = [re.escape(bytes([byte])) + _branches(rest) for byte, rest in node.items()]
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
