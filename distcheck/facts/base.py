"""What all facts have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

SHORTEST_SECONDS = 1e-9
"""The shortest that is measured: no clock tells less than a nanosecond."""
MOST = (1 << 63) - 1
"""The largest whole number that a fact holds."""


class Facts(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower, gc=False):
    """Common ground of all facts: immutable, named fields, tagged so that unions decode without guessing.

    They never refer to each other in circles, so the garbage collector need not walk a million of them (gc=False).
    """


class Missing(Facts, frozen=True):
    """A fact that could not be had, and why."""

    reason: str


Count = Annotated[int, Meta(ge=0, le=MOST)]
"""How many there are of something, bytes and bits among them."""
Bits = Annotated[int, Meta(ge=0)]
"""A mask of up to 64 bits: of some of NVML's the highest has a meaning."""
Whole = Annotated[int, Meta(ge=-MOST - 1, le=MOST)]
"""A number that somebody else gave a meaning: an exit code, a limit of which -1 is none, an enumeration of NVML's."""
Rank = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
"""A rank, a number of ranks or a port as somebody has written it, right or wrong."""
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
"""How long something took or may take: up to three hundred years."""
Measured = Annotated[float, Meta(ge=SHORTEST_SECONDS, le=1e9)]
"""The seconds of something that was measured."""
Offset = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Seconds between two clocks, of which either may be wrong."""
Amount = Annotated[float, Meta(ge=0, le=1e15)]
"""A rate, a power or a share."""
