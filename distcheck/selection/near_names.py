"""Host names that another one is a misspelling of."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ALIKE = 0.75
"""How similar two names must be (difflib's ratio)."""
_MOST = 3


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names that are spelt like a name, the most similar first.

    Names with other numbers are other hosts: node12 is no misspelling of node11.
    """
    from difflib import get_close_matches  # only needed where a name does not resolve

    numbers = _numbers(name)
    pool = [each for each in dict.fromkeys(known) if _numbers(each) == numbers]
    spelt = {each.lower(): each for each in pool}
    close = get_close_matches(name.lower(), spelt, _MOST, _ALIKE)
    first = name.lower().partition(".")[0]  # in a wrong domain
    close += [each for each in spelt if each.partition(".")[0] == first]
    return tuple(dict.fromkeys(spelt[each] for each in close))[:_MOST]


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]+", name.partition(".")[0])]
