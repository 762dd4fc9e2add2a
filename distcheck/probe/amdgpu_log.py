"""Read recent errors of AMD's driver from the kernel log; it has no numbers, as Xids are, only sentences.

Most begin with ``amdgpu`` and the GPU's address; those of an older kernel about rings name no GPU.

Sources: torvalds/linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_job.c, amdgpu_device.c, amdgpu_xgmi.c and
drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from distcheck.facts.base import Missing
from distcheck.facts.gpu import DriverError
from distcheck.probe import xids

if TYPE_CHECKING:
    from pathlib import Path

_Kind = Literal["hang", "reset", "reset failed", "uncorrectable", "xgmi", "start"]
_KINDS: dict[_Kind, re.Pattern[str]] = {
    "uncorrectable": re.compile(
        r"\b(?P<errors>[1-9]\d*) (?:new )?uncorrectable hardware errors? detected|\buncorrectable hardware error\("
        r"|poison consumption|[Bb]ad pages .* reaches threshold"
    ),
    "reset failed": re.compile(r"GPU Recovery Failed|GPU reset end with ret|VRAM is lost due to GPU reset"),
    "reset": re.compile(r"GPU reset begin|GPU reset succeeded"),
    "hang": re.compile(
        r"ring \S+ timeout(?!, but soft recovered)|[Ff]ence wait loop timeout expired|unsuccessful queues preemption"
        r"|Failed to evict process queues"
    ),
    "xgmi": re.compile(r"XGMI: Failed|Set topology failure|XGMI PCS|WAFL PCS"),
    "start": re.compile(r"invalid ip discovery binary signature|Fatal error during GPU init"),
}
_ADDRESS = re.compile(r"\b([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:amdgpu: )?")
BOGUS_ERRORS = 1048560
"""A suspended card reports multiples of it."""
_TEXT, _MOST = 160, 128


def recent(path: Path = xids.KERNEL_LOG) -> tuple[DriverError, ...] | Missing:
    """Return the last day's errors, the newest of each kind and GPU, newest last."""
    lines = xids.read(b"amdgpu", path)
    if isinstance(lines, Missing):
        return lines
    newest: dict[tuple[str, str], DriverError] = {}
    for ago, line in lines:
        text = line.partition(";")[2] or line
        if kind := _kind(text):
            place = _ADDRESS.search(text)
            pci = place[1] if place else ""
            newest.pop((kind, pci), None)
            newest[kind, pci] = DriverError(kind, pci, ago, text[place.end() if place else 0 :].strip()[:_TEXT])
    return tuple(newest.values())[-_MOST:]


def _kind(text: str) -> _Kind | None:
    for kind, pattern in _KINDS.items():
        match = pattern.search(text)
        if match is not None:
            errors = match.groupdict().get("errors")
            return None if errors and int(errors) % BOGUS_ERRORS == 0 else kind
    return None
