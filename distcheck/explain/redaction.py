"""Makes a line of a log safe to show again: no secrets, no control characters."""

from __future__ import annotations

import re

from distcheck.explain.places import plain
from distcheck.probe.environment import redacted

_KEY = re.compile(
    r"\b(?:(?:hf|ghp|gho|ghs|glpat|github_pat|xox[abp]|sk|pk|rk|wandb|nvapi|AKIA|ASIA|eyJ)[-_]?[A-Za-z0-9_.-]{16,}|[0-9a-f]{40})\b"
)
"""Keys by the prefixes that their issuers give them; 40 hexadecimal digits are an API key (wandb) or a commit."""
_SPACED = re.compile(
    r"((?:token|secret|passw(?:or)?d|api[_-]?key|credentials?|authorization|bearer)\w*['\"]?\s*(?:[:=]|\bis\b|\bbearer\b)\s*['\"]?)[^\s'\",;&]{4,}",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(bearer\s+)\S+", re.IGNORECASE)
_HIDDEN = r"\1(redacted)"


def shown(text: str) -> str:
    """Return text without what looks like a secret, and without control characters."""
    words = redacted(plain(text).split(" "))
    return _KEY.sub("(redacted)", _SPACED.sub(_HIDDEN, _BEARER.sub(_HIDDEN, " ".join(words))))
