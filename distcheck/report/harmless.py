"""Makes strings from other machines safe to print: only printable characters."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def harmless(text: str) -> str:
    r"""Return text with every unprintable character escaped: a newline is ``\n``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def storable(value: Any) -> Any:
    """Return evidence in a form that JSON can hold; deterministic.

    Sets are sorted, keys are strings, non-finite numbers are None, and lone surrogates (bytes of an environment
    variable that are not UTF-8) are escaped.
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
