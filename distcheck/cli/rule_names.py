"""Finds rules by a word, or by a name that is spelt wrongly."""

from __future__ import annotations

import re

from distcheck.rules import Rule, all_rules

_WORD = re.compile(r"[a-z0-9]+")
_ELSEWHERE = 10
"""A word in an alias or in the first sentence counts less than one at this place of a rule's name."""


def search(text: str) -> list[Rule]:
    """Return the rules with all words of a text in their name, aliases or first sentence, the nearest first.

    A word is also found as the beginning of a longer one: rank in ranks. If no rule has the words there, those with
    the whole text anywhere in their explanation are returned.
    """
    wanted = _words(text)
    if not wanted:
        return []
    near = [(distance, rule) for rule in all_rules() if (distance := _distance(wanted, rule)) is not None]
    if near:
        return [rule for _, rule in sorted(near, key=lambda found: found[0])]
    whole = re.compile(r"\b" + r"\s+".join(map(re.escape, text.split())) + r"\b", re.IGNORECASE)
    return [rule for rule in all_rules() if whole.search(rule.doc)]


def unknown(name: str) -> str:
    """Return what to type instead of the name of a rule that does not exist."""
    from difflib import get_close_matches

    known = [known for rule in all_rules() for known in (rule.name, *rule.aliases)]
    close = get_close_matches(name.lower(), known, n=2, cutoff=0.8) or [rule.name for rule in search(name)[:2]]
    return f"did you mean {' or '.join(close)}?" if close else "list all rules with: distcheck explain"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _distance(wanted: list[str], rule: Rule) -> int | None:
    """Return how far from the beginning of a rule's name the wanted words are; None if one of them is nowhere."""
    name = _words(rule.name)
    words = name + [""] * (_ELSEWHERE - len(name)) + _words(" ".join((rule.summary, *rule.aliases)))
    places = [next((n for n, word in enumerate(words) if word.startswith(one)), None) for one in wanted]
    known = [min(place, _ELSEWHERE) for place in places if place is not None]
    return sum(known) if len(known) == len(wanted) else None
