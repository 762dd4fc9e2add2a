"""The base of the document's parts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

P = TypeVar("P", bound="Part")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the document's parts: immutable, and strict when parsed."""


def part_of(part: type[P], source: object, **others: Any) -> P:
    """Return a part of the document with these fields, and those of a fact that have the same name."""
    own = {name: getattr(source, name) for name in part.__struct_fields__ if name not in others}
    return part(**own, **others)
