"""Failures of distcheck itself in a probe that it started on a node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distcheck.facts.job import LaunchedNode

_BROKEN = 70
_LAST_LINE = re.compile(r"^distcheck \d\S*: .*$", re.MULTILINE)


def own_failure(node: LaunchedNode) -> str:
    """Return the line with which a failure of distcheck itself ended a node's probe, '' if none did.

    Another version that does not understand its assignment has not failed: it is incompatible.
    """
    if node.outcome == "unreadable":
        return ""
    lines: list[str] = _LAST_LINE.findall(node.words)
    return lines[-1] if lines and node.exit_code in {_BROKEN, None} else ""  # None: mpirun gives no node's exit code
