"""The base class and the number types of all facts."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

SHORTEST_SECONDS = 1e-9
"""The shortest measured time: no clock resolves less than a nanosecond."""
MOST = (1 << 63) - 1
"""The largest whole number that a fact holds."""


class Facts(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower, gc=False):
    """Base of all facts: immutable, with named fields and a tag, so that unions decode.

    Facts never form reference cycles, so the garbage collector need not track a million of them (gc=False).
    """


_F = TypeVar("_F")


def legible(facts: _F) -> _F:
    """Return facts with U+FFFD for bytes of file names that are not UTF-8, which no message or report can hold."""
    try:
        msgspec.msgpack.encode(facts)
    except UnicodeEncodeError:
        return msgspec.convert(_legible(msgspec.to_builtins(facts)), type(facts))
    return facts


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return legible_text(value)
    if isinstance(value, dict):
        return {_legible(key): _legible(each) for key, each in value.items()}
    return [_legible(each) for each in value] if isinstance(value, (list, tuple)) else value


def legible_text(text: str) -> str:
    """Return text of the operating system, such as a path, with U+FFFD for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Missing(Facts, frozen=True):
    """A fact that could not be obtained, and why."""

    reason: str


Count = Annotated[int, Meta(ge=0, le=MOST)]
"""A count, also of bytes and bits."""
Bits = Annotated[int, Meta(ge=0)]
"""A mask of up to 64 bits; some of NVML's masks use the highest bit."""
Whole = Annotated[int, Meta(ge=-MOST - 1, le=MOST)]
"""A number defined elsewhere: an exit code, a limit with -1 for none, an NVML enumeration."""
Rank = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
"""A rank, a number of ranks or a port as configured, valid or not."""
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
"""A duration or a limit, up to three hundred years."""
Measured = Annotated[float, Meta(ge=SHORTEST_SECONDS, le=1e9)]
"""A measured duration in seconds."""
Offset = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Seconds between two clocks, either of which may be wrong."""
Factor = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""What something wrong was multiplied by."""
Amount = Annotated[float, Meta(ge=0, le=1e15)]
"""A rate, a power or a share."""
