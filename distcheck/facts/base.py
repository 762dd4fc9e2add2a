"""What all facts have in common."""

from __future__ import annotations

import msgspec


class Facts(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower, gc=False):
    """Common ground of all facts: immutable, named fields, tagged so that unions decode without guessing.

    They never refer to each other in circles, so the garbage collector need not walk a million of them (gc=False).
    """


class Missing(Facts, frozen=True):
    """A fact that could not be had, and why."""

    reason: str
