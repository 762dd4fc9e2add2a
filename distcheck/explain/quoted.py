"""The messages that the rules' docstrings quote, as spellings: what no table has may still be found.

Rules that only warn quote what healthy jobs write too: such a message is a hint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from distcheck.explain.spelling import HINT, SYMPTOM, Pattern, Spelling
from distcheck.explain.subject import about
from distcheck.rules import Rule, all_rules

_PASSAGE = re.compile(r"\n\n(?:Found (?:by|through|from)|Fix:|See:)")
"""Where a docstring stops quoting messages that the user sees."""
_QUOTED = re.compile(r"``(.+?)``|\"(.+?)\"", re.DOTALL)
_VARIABLE = re.compile(r"\s*(?:\.\.\.|…)\s*|X{3,}|0x[0-9a-fA-F]+|[0-9]+")
"""Parts that differ between occurrences of a message."""
_FEWEST_LETTERS = 8
_FEWEST_WORDS = 3
_ERRNO = frozenset(os.strerror(number) for number in range(1, 134))
"""The words of errno alone occur in too many places to name a rule; the tables say where they do."""
_COMMANDS = ("-", "$", "srun ", "mpirun ", "nvidia-smi ", "distcheck ")


def quoted(rules: Iterable[Rule] | None = None) -> tuple[Spelling, ...]:
    """Return every message that the explanations quote, with the rules that quote it."""
    texts: dict[str, list[Rule]] = {}
    for rule in all_rules() if rules is None else rules:
        for text in dict.fromkeys(_quotes(rule)):
            texts.setdefault(text, []).append(rule)
    return tuple(
        Spelling(
            _pattern(text),
            _constant(text).lower().encode(),
            tuple(rule.name for rule in quoting),
            about(quoting[0].name),
            SYMPTOM if any(rule.severity == "error" for rule in quoting) else HINT,
            "",
            (quoting[0].page,),
            fallback=True,
        )
        for text, quoting in texts.items()
    )


def _quotes(rule: Rule) -> Iterator[str]:
    passage = _PASSAGE.split(rule.doc, maxsplit=1)[0]
    for match in _QUOTED.finditer(passage):
        text = " ".join((match[1] or match[2]).split()).rstrip(".")
        telling = len(text.split()) >= _FEWEST_WORDS and len(_constant(text)) >= _FEWEST_LETTERS
        if telling and not text.startswith(_COMMANDS) and text not in _ERRNO:
            yield text


def _constant(text: str) -> str:
    return max(_VARIABLE.split(text), key=len)


def _pattern(text: str) -> Pattern:
    """Return a pattern that matches a message with any numbers, and any text for an ellipsis."""
    parts, end = [], 0
    for variable in _VARIABLE.finditer(text):
        parts.append(re.escape(text[end : variable.start()]))
        anything = variable[0].strip() in {"...", "…"} or variable[0].startswith("X")
        parts.append(".*?" if anything else "(?:0x)?[0-9a-fA-F]+")
        end = variable.end()
    parts.append(re.escape(text[end:]))
    return Pattern("".join(parts))
