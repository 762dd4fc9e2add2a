"""The search for garbage, of which a process that lives for seconds makes next to none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (10_000_000, 1_000, 1_000)
"""Of `gc.set_threshold`: the first search comes after ten million objects, some gigabytes, that are not freed."""


@contextmanager
def hardly_searched() -> Iterator[None]:
    """Let the body, which the interpreter's end follows, hardly ever search for garbage.

    Start-up creates many objects that stay; the default of one search per 700 objects costs a tenth of it. So does
    judging a large job a search per 100,000: what it finds out stays until the report. At its end Python searches all
    objects twice, except frozen ones.
    """
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.freeze()
