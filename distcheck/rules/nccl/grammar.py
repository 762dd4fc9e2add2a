"""The grammar of NCCL_ALGO and NCCL_PROTO, as NCCL parses them.

Since 2.24 (NVIDIA/nccl, src/graph/tuning.cc, parseList): parts separated by ``;``, each ``function:words``; the first
may lack the function. A ``^`` before the comma-separated words excludes them. Case does not matter, and empty words are
skipped. Before 2.24 the value is one list without functions, and unknown words are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distcheck.selection.nccl_settings import Version

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_WORDS: dict[str, dict[str, Version]] = {
    "NCCL_ALGO": {
        "tree": (), "ring": (), "collnetdirect": (2, 14), "collnetchain": (2, 14), "nvls": (2, 17),
        "nvlstree": (2, 18), "pat": (2, 23),
    },
    "NCCL_PROTO": {"ll": (), "ll128": (), "simple": ()},
}  # fmt: skip
"""The words of each variable, and the release that introduced them (the user guide, env.html)."""
_STRICT = (2, 24)


def problem_of(name: str, value: str, nccl: Version) -> str:
    """Return what is wrong with a value for this NCCL (() is a recent one), '' if nothing is."""
    if name not in _WORDS:
        return ""
    old = bool(nccl) and nccl < _STRICT
    known = {word for word, since in _WORDS[name].items() if not nccl or nccl >= since}
    if old:
        odd = [word for word in value.removeprefix("^").split(",") if word and word.lower() not in known]
        return f"the unknown word {odd[0]!r}" if odd else ""
    for number, part in enumerate(filter(None, value.split(";"))):
        function, colon, words = part.partition(":")
        if not colon or not words:
            function, words = "", function
            if number:
                return f"no function before {part!r}"
        if function and function.lower() not in FUNCTIONS:
            return f"the unknown function {function!r}"
        for word in filter(None, words.partition(":")[0].removeprefix("^").split(",")):
            if word.lower() not in known:
                return f"the unknown word {word!r}"
    return ""


def without_algorithm(value: str, nccl: Version) -> bool:
    """Return whether a valid NCCL_ALGO leaves none for broadcast, which only the ring implements."""
    if not value or problem_of("NCCL_ALGO", value, nccl) or (nccl and nccl < _STRICT):
        return False
    ring = True
    for part in filter(None, value.split(";")):
        function, colon, words = part.partition(":")
        if not colon:
            function, words = "", function
        if function.lower() in {"", "broadcast"}:
            listed = "ring" in words.lower().removeprefix("^").split(",")
            ring = listed != words.startswith("^")
    return not ring
