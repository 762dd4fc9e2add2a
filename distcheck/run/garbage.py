"""The search for garbage, of which a process that lives for seconds makes next to none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hardly_searched() -> Iterator[None]:
    """Let the body, which the interpreter's end follows, search for garbage a hundred times less often.

    Start-up creates many objects that stay; the default of one search per 700 objects costs a tenth of it. The facts of
    a large job are no garbage either: a search of all objects would look through all of them. At its end Python
    searches all objects twice, except frozen ones.
    """
    gc.set_threshold(100_000, 1_000, 1_000)
    try:
        yield
    finally:
        gc.freeze()
