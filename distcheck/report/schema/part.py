"""The base of the document's parts."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the document's parts: immutable, and strict when parsed."""
