"""The commands of a shell's line or script, as far as they can be told without a shell.

Variables that the text sets are filled in, those of `export` passed on. What only a shell works out ($(…), what a
sourced file sets, what an if decides) stays in a word as it is written, with its $.
Source: POSIX.1-2017, Shell Command Language; arrays and [[ as bash has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_QUOTED = rf"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|`[^`]*`|\${_NESTED}|[<>]\([^()]*\)"""
_WORD = rf"""(?:{_QUOTED}|(?<==){_NESTED}|[^\s;&|<>()'"\\`])+"""
_TOKEN = re.compile(
    rf"(?:[ \t\r]|\\\n|(?<![^\s;&|()])\#[^\n]*)+|\d*(?:&>>?|[<>]+[&|]?)[ \t]*{_WORD}"
    rf"|(?P<word>{_WORD})|(?P<operator>&&|\|\|?|;+|.)",
    re.DOTALL,
)
"""Nothing, a redirection, a word, or what stands between commands."""
_PIECE = re.compile(rf"({_QUOTED})|(?:(?!\$\()[^'\"\\`])+|.", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*['\"]?(\w+)['\"]?([^\n]*)\n.*?^[ \t]*\1$", re.DOTALL | re.MULTILINE)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?[-=]([^${}]*))?\})")
_OPEN, _CLOSE = (
    frozenset({"if", "for", "while", "until", "case", "select", "{"}),
    frozenset({"fi", "done", "esac", "}"}),
)
_BETWEEN = frozenset({"then", "do", "else", "elif", "function", "!", "exec", "command", "time"})
_TESTS = frozenset({"[", "[[", "test"})
_DECLARE = frozenset({"export", "declare", "typeset", "readonly", "local"})
UNKNOWN = re.compile(r"[$`]")
"""In a word: what only a shell works out."""


class Simple(NamedTuple):
    """A command of a shell's text."""

    words: tuple[str, ...]
    environ: Mapping[str, str]
    """The variables that it gets."""
    folder: str
    """Where it starts, relative to the shell."""
    doubt: str
    """Why it, or a word of it, is unknown; '' if it is not."""
    emptied: bool
    """Whether a variable that is set nowhere here was left out."""


def commands(text: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> Iterator[Simple]:
    """Yield the commands of a text; `arguments` are $0, $1, ….; none if it has an open quotation mark."""
    variables = {**environ, **{str(n): word for n, word in enumerate(arguments)}}
    exported, folder, inside, parentheses, tested, sourced = set(environ), "", 0, 0, False, False
    parts = list(_parts(_HERE_DOCUMENT.sub(r"\2", text)))
    for operator, found in [] if any(operator in "'\"`\\" for operator, _ in parts) else parts:
        tokens = found
        parentheses = max(0, parentheses + (operator == "(") - (operator == ")"))
        while tokens and tokens[0] in _OPEN | _CLOSE | _BETWEEN:
            inside += (tokens[0] in _OPEN) - (tokens[0] in _CLOSE)
            tokens = tokens[1 + (tokens[0] == "function") :]
        tested = operator == "||" or (tested and operator == "&&") or not _TESTS.isdisjoint(tokens[:1])
        unsure, own, declares = inside > 0 or parentheses > 0 or tested, dict[str, str](), tokens[:1]
        tokens = tokens[not _DECLARE.isdisjoint(declares) :]
        while tokens and (match := _ASSIGNMENT.fullmatch(tokens[0])):
            given = match[3][1:-1] if match[3][:1] == "(" else match[3]
            value = " ".join(_expanded(given, variables, keep=sourced))
            value = f"{variables.get(match[1], '')}{' ' * (given != match[3])}{value}" if match[2] else value
            own[match[1]] = f"${match[1]}" if unsure else value
            tokens = tokens[1:]
        words = tuple(word for token in tokens for word in _expanded(token, variables, keep=sourced))
        if not words or not _DECLARE.isdisjoint(declares):
            variables |= own
            exported |= {*own, *words} if declares == ["export"] or "-x" in words else set()
        elif words[0] == "exit" and not unsure:
            return
        elif words[0] in {"cd", "pushd"}:
            folder = os.path.join(folder, words[-1])  # noqa: PTH118 it may be no path of this machine
        elif words[0] == "eval":
            yield from commands(" ".join(words[1:]), variables)
        else:
            sourced = sourced or (words[0] in {"source", ".", "read"} and not words[-1].endswith("/activate"))
            script = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
            unknown = next((word for word in words[:script] if UNKNOWN.search(word)), "")
            doubt = f"only a shell can work out {unknown}" if unknown else ""
            doubt = "an if, a loop, a function or a test decides whether it runs" if unsure else doubt
            passed = {name: value for name, value in variables.items() if name in exported}
            kept = [word for token in tokens for word in _expanded(token, variables, keep=True)]
            emptied = not sourced and words != tuple(kept)
            yield Simple(words, {**passed, **own}, folder, doubt, emptied)


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the words between operators, with the operator before them, without redirections."""
    operator, tokens = ";", list[str]()
    for match in _TOKEN.finditer(text):
        if match["word"]:
            tokens.append(match["word"])
        elif match["operator"]:
            yield operator, tokens
            operator, tokens = match["operator"], []
    yield operator, tokens


def _expanded(token: str, variables: Mapping[str, str], *, keep: bool) -> list[str]:
    """Return the words that a shell makes of a token; `keep` leaves variables that are not set as they are."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return variables.get(name) or (match[0] if keep and name not in variables else match[3] or "")

    def filled(text: str) -> str:
        return _VARIABLE.sub(value, _VARIABLE.sub(value, text))  # one may be the default of another

    words, quoted = [""], False
    for match in _PIECE.finditer(token):
        piece = match[0]
        if piece[0] in "'\"" and not ("[@]" in piece and piece[0] == '"'):
            quoted = True
            inner = piece[1:-1]
            words[-1] += inner if piece[0] == "'" else re.sub(r"\\([\"$`\\])|\\\n", r"\1", filled(inner))
        elif match[1] and piece[0] in "\\`$<>":
            words[-1] += piece[1:].strip("\n") if piece[0] == "\\" else piece
        else:
            first, *more = re.split(r"\s+", filled(piece.strip('"')))
            words[-1] += first
            words += more
    return [word for word in words if word or quoted]
