"""What the values of a wording's named groups must be, where a regular expression cannot say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

_NETWORK = re.compile(
    r"\bconnect|socket|network|unreachable|rdma|infiniband|\bibv_|\bhost\b|\bport\b|\baddress\b|\bpeer", re.IGNORECASE
)
_GPU = re.compile(r"\bcuda|\bgpus?\b|nvml|nvidia|\bhip\b|rocm|nvlink|\bxid\b|\bdriver", re.IGNORECASE)
_MEMORY = re.compile(r"has ([\d.]+) ([KMGT])iB")
_GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2**10}
_MUCH_MORE = 1.5
"""Ranks that share a GPU hold about the same memory each."""


def _alone(values: Mapping[str, str]) -> bool:
    return values.get("world") in {"1", "-1", "0"}


def _held_by_others(values: Mapping[str, str]) -> bool:
    others, own = (
        sum(float(number) * _GIB[unit.upper()] for number, unit in _MEMORY.findall(values[name]))
        for name in ("others", "own")
    )
    return others > _MUCH_MORE * own


def _concerns(about: str, values: Mapping[str, str]) -> bool:
    return _class_of(f"{values.get('before', '')}|{values.get('after', '')}") == about


@lru_cache(maxsize=64)
def _class_of(line: str) -> str:
    return "network" if _NETWORK.search(line) else "GPU" if _GPU.search(line) else "start-up"


PREDICATES: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "alone": _alone,
    "several": lambda values: not _alone(values),
    "too-few": lambda values: int(values["joined"]) < int(values["world"]),
    "too-many": lambda values: int(values["joined"]) > int(values["world"]),
    "held-by-others": _held_by_others,
    **{f"concerns {about}": partial(_concerns, about) for about in ("network", "GPU", "start-up")},
}
"""By the name that a table uses; each takes the values of the named groups."""
