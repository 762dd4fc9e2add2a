"""An example line of each known wording: a line of a real log that has it, or else one made from its pattern."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from functools import cache

try:
    from re import _constants as codes
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_constants as codes
    import sre_parse as parser

_LETTERS = "a0 /_-.:=('\"X%"
"""What stands for a class of characters: the first of these that it has."""


@cache
def example(pattern: str) -> str:
    """Return a text that matches a pattern; empty if none was found."""
    for most in (False, True):
        text = "".join(_parts(parser.parse(pattern, re.IGNORECASE), most=most))
        if re.search(pattern, text, re.IGNORECASE):
            return text
    return ""


def _parts(items: Iterable, *, most: bool) -> Iterable[str]:
    for code, value in items:
        if code is codes.LITERAL:
            yield chr(value)
        elif code in {codes.IN, codes.ANY}:
            yield _one_of((code, value))
        elif code is codes.NOT_LITERAL:
            yield "x" if chr(value) != "x" else "y"
        elif code is codes.SUBPATTERN:
            yield from _parts(value[3], most=most)
        elif code is codes.BRANCH:
            yield from _parts(value[1][-1 if most else 0], most=most)
        elif code in {codes.MAX_REPEAT, codes.MIN_REPEAT}:
            least, _, inside = value
            gap = most and least == 0 and inside[0][0] in {codes.ANY, codes.IN} and re.fullmatch(_class(inside[0]), " ")
            yield " " if gap else "".join(_parts(inside, most=most)) * max(least, int(most))
        elif code is codes.ASSERT and value[0] > 0:
            yield from _parts(value[1], most=most)


def _one_of(item: tuple) -> str:
    allowed = re.compile(_class(item))
    return next((c for c in (*_LETTERS, *string.printable) if allowed.match(c)), "")


def _class(item: tuple) -> str:
    """Return a class of characters as a pattern."""
    code, value = item
    if code is codes.ANY:
        return "."
    if code is codes.NEGATE:
        return "^"
    if code is codes.IN:
        return f"[{''.join(map(_class, value))}]"
    if code is codes.CATEGORY:
        name = str(value).removeprefix("CATEGORY_")
        letter = name.removeprefix("NOT_")[0].lower()
        return f"\\{letter.upper() if name.startswith('NOT_') else letter}"
    if code is codes.RANGE:
        return "-".join(re.escape(chr(end)) for end in value)
    return re.escape(chr(value))
