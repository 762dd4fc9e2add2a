"""Loads pickles of containers, text and numbers; one that names a class or a function is not loaded."""

from __future__ import annotations

import gc
import io
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MEMORY_BYTES = 1 << 30
"""What unpickling one dump may take beyond 64 times its size."""
_VALUES_PER_BYTE = 64
"""Stack frames are shared by reference; a dump with more values than this per byte is built to exhaust memory."""


class _Plain(pickle.Unpickler):
    """Loads containers, text and numbers; no pickle can name a class or a function."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the pickle names {module}.{name}; a dump has plain values only")

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002  # the name of pickle's parameter
        raise ValueError("the pickle refers to objects outside it; a dump has plain values only")


def unpickled(raw: bytes) -> Any:
    """Return what a pickle holds.

    Raises:
        ValueError: it is damaged, names a class or function, or has the same parts too often.
        MemoryError: it needs far more memory than its size.
    """
    gc.disable()  # many small objects and no cycles: the collector only costs time
    try:
        with _limited_memory(_MEMORY_BYTES + _VALUES_PER_BYTE * len(raw)):
            value = _Plain(io.BytesIO(raw)).load()
    except (EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"truncated or damaged pickle: {error}") from None
    finally:
        gc.enable()
    _check_size(value, _VALUES_PER_BYTE * len(raw))
    return value


def _check_size(value: Any, most: int) -> None:
    """Raise ValueError if a value with all its parts, shared ones as often as they occur, has too many."""
    containers: list[Any] = [[value]]
    while containers:
        container = containers.pop()
        most -= len(container)
        if most < 0:
            raise ValueError("holds the same values too often; a dump does not")
        parts = container.values() if isinstance(container, dict) else container
        containers += [part for part in parts if isinstance(part, (dict, list, tuple, set, frozenset))]


@contextmanager
def _limited_memory(more: int) -> Iterator[None]:
    """Limit how much more memory this process may map: a pickle of 10 bytes can ask for 64 GB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = [limit for limit in (used + more, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
