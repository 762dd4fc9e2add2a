"""How often rows are repeated at most: a whole run has ten minutes for all of them, one benchmark alone has more."""

from __future__ import annotations

alone = False
"""Whether the benchmark is measured with --only; run.py knows."""


def most(in_a_whole_run: int, by_itself: int) -> int:
    """Return the most repetitions."""
    return by_itself if alone else in_a_whole_run
