"""For what share of the time an AMD GPU's firmware slowed it down, from two readings of its file gpu_metrics.

The file is binary, and its layout differs by revision, so only layouts that are known by revision and size are read.
Before 1.6 (MI200, the first drivers of MI300) it has no counters, only bits of the moment, some of which are always set
on some cards.

Sources: torvalds/linux drivers/gpu/drm/amd/include/kgd_pp_interface.h, and pm/swsmu/smu_cmn.h, where 1.9 is packed;
https://rocm.docs.amd.com/projects/amdsmi/en/latest/conceptual/gpu-violations.html. Files of 1.6 and 1.9 recorded on
MI300X: github.com/SebastianM-C/GPUDiagnostics.jl, test/fixtures/amdgpu.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import NOT_SUPPORTED

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<HBB")
_COUNTERS = struct.Struct("<6I")
_PLACES = {(1664, 1, 6): 32, (2208, 1, 7): 40, (3872, 1, 8): 40}
"""Where the six counters begin, by size and revision."""
_FIRST_COUNTER = 9
"""The first one's id in revision 1.9."""
_TYPES = "BbHhIiQq"
"""Those of revision 1.9, by number."""
_UNSET = {0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF}
_ABSENT = {errno.ENOENT, errno.EOPNOTSUPP, errno.ENODATA}


class Slowed(NamedTuple):
    """The firmware's counters: its ticks since it started, and those at which something slowed the GPU down."""

    ticks: int
    prochot: int
    """The signal of the board, its power supply or its voltage regulators to slow down."""
    power: int
    socket: int
    regulator: int
    memory: int


class Shares(NamedTuple):
    """For what share of the time a GPU was slowed down."""

    prochot: float
    heat: float | Missing


def read(device: Path) -> Slowed | Missing:
    """Return the counters of the GPU with this folder."""
    try:
        data = (device / "gpu_metrics").read_bytes()
    except OSError as error:
        return NOT_SUPPORTED if error.errno in _ABSENT else Missing(reason=f"amdgpu: gpu_metrics: {error.strerror}")
    size, major, minor = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0, 0, 0)
    if major == 1 and minor < 6:
        return NOT_SUPPORTED
    whole = data if len(data) == size else b""
    try:
        if (major, minor) == (1, 9):
            found = _attributes(whole)
            counters = tuple(found[_FIRST_COUNTER + n] for n in range(6))
        else:
            counters = _COUNTERS.unpack_from(whole, _PLACES[size, major, minor])
    except (KeyError, IndexError, struct.error):
        return Missing(reason=f"amdgpu: gpu_metrics of revision {major}.{minor} with {len(data)} bytes is not known")
    return NOT_SUPPORTED if _UNSET & set(counters) else Slowed(*counters)


def _attributes(data: bytes) -> dict[int, int]:
    """Return the numbers of revision 1.9 by id: before each stands a word with its id, type and number of items."""
    found, at = {}, 8
    for _ in range(int.from_bytes(data[4:8], "little")):
        (word,) = struct.unpack_from("<Q", data, at)
        values = struct.Struct(f"<{word & 0x3FF}{_TYPES[word >> 20 & 0xF]}")
        found[word >> 10 & 0x3FF] = values.unpack_from(data, at + 8)[0]
        at += 8 + values.size
    return found


def shares(before: Slowed | Missing, after: Slowed | Missing) -> Shares | Missing:
    """Return for what share of the time between two readings a GPU was slowed down.

    DKMS driver 6.10.5 counted each tick of an idle MI300X as too hot, at its socket and its memory alike.
    """
    if isinstance(before, Missing):
        return before
    if isinstance(after, Missing):
        return after
    ticks = after.ticks - before.ticks
    grown = [now - then for then, now in zip(before, after, strict=True)]
    if ticks <= 0 or min(grown) < 0:
        return Missing(reason="amdgpu: the counters of gpu_metrics did not move, or began again")
    if after.socket == after.memory == after.ticks:
        heat: float | Missing = Missing(reason="amdgpu: gpu_metrics counts the GPU as too hot all the time")
    else:
        heat = max(grown[3:]) / ticks
    return Shares(grown[1] / ticks, heat)
