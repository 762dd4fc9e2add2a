"""Strings from other machines, made safe to print: no terminal escapes, no breaks, nothing invisible."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def harmless(text: str) -> str:
    r"""Return text in which everything that does not print is written as an escape: a newline is ``\n``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def storable(value: Any) -> Any:
    """Return evidence as JSON can hold it, the same every time.

    Sets are sorted, keys are strings, what is not finite is None, and lone surrogates (bytes of an
    environment variable that are no UTF-8) are written as escapes.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if isinstance(value, set | frozenset):
        return [storable(item) for item in sorted(value, key=_order)]
    if isinstance(value, msgspec.Struct):
        return storable(msgspec.to_builtins(value))
    return storable(str(value))


def _order(item: Any) -> tuple[str, Any]:
    return type(item).__name__, item if isinstance(item, int | float | str) else repr(item)
