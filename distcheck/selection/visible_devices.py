"""Which GPUs a CUDA_VISIBLE_DEVICES leaves to a process, and the item that ends the list.

The grammar (CUDA programming guide, "CUDA Environment Variables", and torch's own reading of it in
``torch.cuda._parse_visible_devices``): commas separate the items; the value's beginning decides whether they are
indices, ``GPU-`` UUIDs or ``MIG-`` UUIDs; the first unreadable item ends the list; a repeated item empties it.

Differences from torch 2.13, where torch does not look: MIG devices are resolved (torch leaves that to CUDA), GPUs that
NVML lists but CUDA cannot open are not counted, digits are ASCII only, and a sign without a number, on which torch
raises ValueError, ends the list. Indices are NVML's: CUDA's own order is the same if all GPUs of a node are of one
model, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import usable_name

if TYPE_CHECKING:
    from distcheck.facts.gpu import Gpu

_NUMBER = re.compile(r"[+-]?[0-9]{1,4000}")  # int() refuses more than 4300 digits
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/[0-9]+/[0-9]+")
_BLANKS = " \t\n\v\f\r"  # C's isspace(); str.strip() alone removes more
_UUID = ("GPU-", "MIG-")


class BadItem(NamedTuple):
    """The first item that is probably a mistake."""

    kind: Literal["empty", "minus-one", "duplicate", "bad-item", "mixed", "stale"]
    item: int
    """Counted from 1; 0 for the whole value."""
    text: str
    why: str

    def __str__(self) -> str:
        return f"item {self.item} ({self.text!r}): {self.why}" if self.item else self.why


class Visible(NamedTuple):
    """What CUDA shows of a node's GPUs."""

    uuids: tuple[str, ...]
    """UUIDs of GPUs or MIG devices in CUDA's order; ``PCI-`` and the address if NVML has no UUID."""
    stop: str = ""
    """The item at which the list ends early, and why; '' if all of it was used."""
    unknown: str = ""
    """Why CUDA may show more: the item may name a GPU whose UUID NVML does not report."""


class _Reading(NamedTuple):
    """Positions of the GPUs in the list, what ended it, and the first fault."""

    positions: tuple[int, ...]
    stop: str = ""
    fault: BadItem | None = None
    unknown: str = ""


def visible(value: str | None, gpus: tuple[Gpu, ...]) -> Visible:
    """Return the GPUs of a node that a process with this CUDA_VISIBLE_DEVICES sees.

    None means unset.
    """
    usable = tuple([gpu for gpu in gpus if usable_name(gpu)])
    if value is None:
        return _whole_or_mig(usable, "")
    picked = _read(value, gpus)
    if value.startswith("MIG-"):
        return _first_of(_mig_devices(value, gpus), picked)._replace(unknown=picked.unknown)
    chosen = tuple(usable[position] for position in picked.positions)
    return _whole_or_mig(chosen, picked.stop)._replace(unknown=picked.unknown)


def fault_in(value: str | None, gpus: tuple[Gpu, ...]) -> BadItem | None:
    """Return the first faulty item, None if the value is fine.

    A node without a usable GPU, or an index that would be right if no GPU were lost, is not the value's fault.
    """
    return _read(value, gpus).fault


def device_of(local_rank: int | None, visible: tuple[str, ...]) -> str | None:
    """Return the GPU that ``cuda:LOCAL_RANK`` is, or the only visible one, else None.

    If every rank sees one GPU of its own (``srun --gpus-per-task=1``), scripts take it whatever LOCAL_RANK is.
    """
    if local_rank is not None and 0 <= local_rank < len(visible):
        return visible[local_rank]
    return visible[0] if len(visible) == 1 else None


def _read(value: str | None, gpus: tuple[Gpu, ...]) -> _Reading:
    usable = tuple(gpu for gpu in gpus if usable_name(gpu))
    if not usable:
        return _Reading(())
    if value is None:
        return _Reading(tuple(range(len(usable))))
    if not value.strip(_BLANKS + ","):
        return _Reading((), "it names no GPU", BadItem("empty", 0, value, "it is set but names no GPU"))
    if value.startswith("MIG-"):
        return _by_uuid(value, "MIG-", _mig_devices(value, gpus), gpus)
    if value.startswith("GPU-"):
        return _by_uuid(value, "GPU-", tuple(usable_name(gpu) for gpu in usable), gpus)
    return _by_index(value, len(usable), gpus)


def _by_index(value: str, count: int, gpus: tuple[Gpu, ...]) -> _Reading:
    items = value.split(",")
    indices: list[int] = []
    stop, fault = "", None
    for number, item in enumerate(items, start=1):
        text = item.strip(_BLANKS)
        match = _NUMBER.match(text)
        index = int(match[0]) if match else -1
        if index in indices:
            return _emptied(number, item)
        if match is None or index < 0:
            if any(rest.strip(_BLANKS) for rest in items[number - 1 :]):  # else only commas at the end
                found = _unreadable(number, item, first="")
                stop, fault = str(found), fault or found
            break
        if match.end() < len(text) and fault is None:
            fault = BadItem("bad-item", number, item, f"CUDA reads {index} and ignores {text[match.end() :]!r}")
        indices.append(index)
    for position, index in enumerate(indices):
        if index >= count:
            why = f"GPU {index} does not exist, only {_range(count)}; it ends the list"
            found = BadItem("bad-item", position + 1, items[position], why)
            # With one of 8 GPUs lost CUDA counts 7: the index is right, and the GPU is at fault.
            known = index < len(gpus) and any(gpu.lost for gpu in gpus)
            earlier = fault if fault and fault.item <= found.item else None
            return _Reading(tuple(indices[:position]), str(found), earlier or (None if known else found))
    return _Reading(tuple(indices), stop, fault)


def _by_uuid(value: str, prefix: str, pool: tuple[str, ...], gpus: tuple[Gpu, ...]) -> _Reading:
    items = value.split(",")
    prefixes: list[str] = []
    stop, fault = "", None
    for number, item in enumerate(items, start=1):
        if item in prefixes:
            return _emptied(number, item)
        if not item.startswith(prefix):
            if any(rest.strip(_BLANKS) for rest in items[number - 1 :]):
                fault = _unreadable(number, item, first=prefix)
                stop = str(fault)
            break
        prefixes.append(item)
    positions: list[int] = []
    for number, item in enumerate(prefixes, start=1):
        fits = [position for position, uuid in enumerate(pool) if uuid.startswith(item)]
        if len(fits) != 1:
            found = _unknown(number, item, [pool[position] for position in fits])
            known = not fits and any(_may_be(gpu, item) for gpu in gpus)
            return _Reading(
                tuple(positions), str(found), None if known else found, "" if fits else _unnamed(found, gpus)
            )
        if fits[0] in positions:
            return _emptied(number, item)
        positions += fits
    return _Reading(tuple(positions), stop, fault)


def _mig_devices(value: str, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Return a node's MIG devices, with those that the value names as MIG-GPU-UUID/GI/CI.

    Today's drivers give another name to such a device, and its instance numbers are not collected, so the value is
    trusted.
    """
    devices = tuple(uuid for gpu in gpus if not gpu.lost for uuid in gpu.mig_uuids)
    old = [
        item
        for item in dict.fromkeys(value.split(","))
        if (named := _OLD_MIG.fullmatch(item)) and any(gpu.uuid == named[1] and gpu.mig_uuids for gpu in gpus)
    ]
    return devices + tuple(item for item in old if item not in devices)


def _first_of(pool: tuple[str, ...], picked: _Reading) -> Visible:
    """Return the first MIG device that was selected.

    A process sees only one (MIG user guide, "CUDA Device Enumeration").
    """
    uuids = tuple(pool[position] for position in picked.positions)
    return Visible(uuids[:1], "item 2: a process sees only one MIG device" if len(uuids) > 1 else picked.stop)


def _whole_or_mig(chosen: tuple[Gpu, ...], stop: str) -> Visible:
    """Name the selected GPUs; if one is divided, its first MIG device replaces all of them."""
    devices = [uuid for gpu in chosen if gpu.mig is True for uuid in gpu.mig_uuids]
    if devices:
        alone = len(devices) == 1 and len(chosen) == 1
        return Visible((devices[0],), stop if alone else "a process sees only one MIG device, and no GPU beside it")
    whole = tuple([usable_name(gpu) for gpu in chosen if gpu.mig is not True])
    if len(whole) < len(chosen):
        return Visible(whole, stop or "a GPU in MIG mode without a MIG device is not visible")
    return Visible(whole, stop)


def _emptied(number: int, item: str) -> _Reading:
    fault = BadItem("duplicate", number, item, "it repeats a GPU, so CUDA shows no GPU at all")
    return _Reading((), str(fault), fault)


def _unreadable(number: int, item: str, first: str) -> BadItem:
    """Return the fault of an item that is not of the list's kind, whose prefix is `first`."""
    text = item.strip(_BLANKS)
    if _NUMBER.match(text):
        if text.startswith("-"):
            return BadItem("minus-one", number, item, "a negative number ends the list")
        return BadItem("mixed", number, item, "an index in a list of UUIDs ends the list")
    if text.startswith(_UUID) and (text != item if number == 1 else first and text.startswith(first)):
        return BadItem("bad-item", number, item, "the blank before the UUID ends the list")
    if text.startswith(_UUID):
        other = f"{first.rstrip('-')} UUIDs" if first else "indices"
        return BadItem("mixed", number, item, f"a {text[:3]} UUID in a list of {other} ends the list")
    why = "it is neither an index nor a UUID and ends the list"
    if not text:
        why = "an empty item ends the list"
    elif text.lower() in {"all", "none", "void", "nodevfiles"}:
        why = f"CUDA does not accept {text!r}; it ends the list"
    elif text[0] in "[({\"'":
        why = "a bracket or quote ends the list"
    elif text.upper().startswith(_UUID):
        why = "UUIDs begin with GPU- or MIG- in capitals; this item ends the list"
    return BadItem("bad-item", number, item, why)


def _unknown(number: int, item: str, fits: list[str]) -> BadItem:
    if fits:
        why = f"it matches {' and '.join(fits)}, so CUDA takes none of them; it ends the list"
        return BadItem("bad-item", number, item, why)
    if item != item.strip(_BLANKS):
        return BadItem("bad-item", number, item, "the blank after the UUID ends the list")
    return BadItem("stale", number, item, "no GPU of this node has this UUID; it ends the list")


def _may_be(gpu: Gpu, prefix: str) -> bool:
    """Return whether a UUID that matches no usable GPU may belong to a lost or unreadable one."""
    return gpu.uuid.startswith(prefix) if isinstance(gpu.uuid, str) else True


def _unnamed(item: BadItem, gpus: tuple[Gpu, ...]) -> str:
    """Return which GPUs an item may name because NVML does not report their UUIDs; '' if none."""
    names = [str(gpu.index) for gpu in gpus if not gpu.lost and isinstance(gpu.uuid, Missing)]
    which = f"GPU {names[0]}" if len(names) == 1 else f"GPUs {', '.join(names)}"
    return f"item {item.item} ({item.text!r}) may name {which}, whose UUID NVML does not report" if names else ""


def _range(count: int) -> str:
    return "GPU 0" if count == 1 else f"GPUs 0 to {count - 1}"
