"""Which variable selects a rank's GPUs, and what it leaves: CUDA's on NVIDIA's GPUs, and ROCm's three on AMD's.

ROCm's runtime applies ROCR_VISIBLE_DEVICES to KFD's list; HIP then applies HIP_VISIBLE_DEVICES to what is left, and
without that CUDA_VISIBLE_DEVICES. torch reads HIP's variable too and counts no GPU if it is empty or repeats one, where
HIP goes on. GPU_DEVICE_ORDINAL counts for OpenCL only.

Sources: ROCm/ROCR-Runtime runtime/hsa-runtime/core/runtime/amd_filter_device.cpp; ROCm/clr rocclr/device/rocm/
rocdevice.cpp; torch/cuda/__init__.py (_parse_visible_devices, _device_count_amdsmi).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.gpu import usable_name
from distcheck.selection.visible_devices import BadItem, Visible, fault_in, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distcheck.facts.gpu import Gpu

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
SELECTING = (CUDA, HIP, ROCR)
_BASE_0 = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})")
_BEYOND = "GPU"
"""How the reason begins for a number that is too large."""
_Read = tuple[list[str], BadItem | None, str]
"""The GPUs that a value leaves, what is wrong with it, and the item that ends it."""
_SHORTEST, _LONGEST = 5, 20
"""Characters of an id's beginning that ROCm's runtime accepts: GPU-6 to GPU-6d1c3b2a00000001."""


class Selected(NamedTuple):
    """What a process's variables leave of a node's GPUs."""

    variable: str
    """The one that decides, or that is wrong."""
    value: str | None
    """None: unset."""
    fault: BadItem | None
    shown: Visible


def deciding(environ: Mapping[str, str], vendor: str) -> tuple[str, str | None]:
    """Return the last variable that selects GPUs, and its value."""
    names = (HIP, CUDA, ROCR) if vendor == "amd" else (CUDA,)
    name = next((name for name in names if name in environ), names[0])
    return name, environ.get(name)


def selected(environ: Mapping[str, str], gpus: tuple[Gpu, ...], vendor: str) -> Selected:
    """Return which GPUs a process with these variables sees."""
    name, value = deciding(environ, vendor)
    if vendor != "amd":
        return Selected(name, value, None if value is None else fault_in(value, gpus), visible(value, gpus))
    pool, first, fault, stop = list(filter(None, map(usable_name, gpus))), environ.get(ROCR), None, ""
    if not pool:
        return Selected(name, value, None, Visible(()))
    if first is not None:
        pool, fault, stop = _by_runtime(first, pool, gpus)
    if fault is not None or name == ROCR or value is None:
        return Selected(name if first is None else ROCR, value if first is None else first, fault, _left(pool, stop))
    told = len(pool)
    pool, fault, stop = _by_hip(value, pool, gpus)
    if fault is None and name == HIP and first is not None and len(value.split(",")) > told:
        stop = f"it has more items than {ROCR} leaves GPUs, which torch refuses"
        pool, fault = [], BadItem("bad-item", 0, value, stop)
    return Selected(name, value, fault, _left(pool, stop))


def _left(pool: Sequence[str], stop: str) -> Visible:
    return Visible(tuple(pool), stop)


def _by_runtime(value: str, pool: Sequence[str], gpus: Sequence[Gpu]) -> _Read:
    """Read ROCR_VISIBLE_DEVICES: the first item that is wrong or repeated ends the list; more than GPUs are unread."""
    if not value.strip():
        return [], _empty(value), "it names no GPU"
    found: list[str] = []
    for number, item in enumerate(value.split(",")[: len(pool)], start=1):
        text = item.strip()
        if text.upper().startswith("GPU-") and _SHORTEST <= len(text) <= _LONGEST:
            fits = [name for name in pool if name.upper().startswith(text.upper())]
            bad = None if len(fits) == 1 else _no_id(number, item, fits)
        else:
            index = _in_base_0(text)
            fits = list(pool[index : index + 1]) if index is not None and index >= 0 else []
            bad = None if fits else _no_index(number, item, index, len(pool))
        if bad is None and fits[0] in found:
            bad = BadItem("duplicate", number, item, "it repeats a GPU, which ends the list")
        if bad is not None:
            return found, _unless_lost(bad, gpus), str(bad)
        found.append(fits[0])
    return found, None, ""


def _by_hip(value: str, pool: Sequence[str], gpus: Sequence[Gpu]) -> _Read:
    """Read HIP's variable: the first item that is wrong ends the list; torch counts no GPU if one is repeated."""
    if not value.strip():
        return [], _empty(value), "it names no GPU"
    found: list[str] = []
    for number, item in enumerate(value.split(","), start=1):
        if item.startswith("GPU-"):
            fits = [name for name in pool if item.removeprefix("GPU-") in name.removeprefix("GPU-")][:1]
            bad = None if fits else _no_id(number, item, fits)
        else:
            index = int(item) if re.fullmatch(r"0|-?[1-9][0-9]{0,8}", item) else None
            fits = list(pool[index : index + 1]) if index is not None and index >= 0 else []
            bad = None if fits else _no_index(number, item, index, len(pool))
        if bad is not None:
            return found, _unless_lost(bad, gpus), str(bad)
        if fits[0] in found:
            bad = BadItem("duplicate", number, item, "it repeats a GPU, and torch then counts no GPU at all")
            return [], bad, str(bad)
        found.append(fits[0])
    return found, None, ""


def _empty(value: str) -> BadItem:
    return BadItem("empty", 0, value, "it is set but names no GPU")


def _in_base_0(text: str) -> int | None:
    """Return a number as strtol reads it: 0x3, and 03 as octal; None if the text is none."""
    if not _BASE_0.fullmatch(text):
        return None
    try:
        return int(text, 0)
    except ValueError:
        return int(text, 8) if set(text.lstrip("+-")) <= set("01234567") else None


def _no_index(number: int, item: str, index: int | None, count: int) -> BadItem:
    if index is None:
        return BadItem("bad-item", number, item, "it is neither a GPU's number nor its unique id; it ends the list")
    if index < 0:
        return BadItem("minus-one", number, item, "a negative number ends the list")
    there = "GPU 0" if count == 1 else f"GPUs 0 to {count - 1}"
    return BadItem("bad-item", number, item, f"{_BEYOND} {index} does not exist, only {there}; it ends the list")


def _no_id(number: int, item: str, fits: Sequence[str]) -> BadItem:
    if fits:
        return BadItem("bad-item", number, item, f"it matches {' and '.join(fits[:3])}; it ends the list")
    return BadItem("stale", number, item, "no GPU of this node has this unique id; it ends the list")


def _unless_lost(bad: BadItem, gpus: Sequence[Gpu]) -> BadItem | None:
    """Return the fault, None for a number or an id that a lost GPU may have had."""
    return None if (bad.kind == "stale" or bad.why.startswith(_BEYOND)) and any(gpu.lost for gpu in gpus) else bad
