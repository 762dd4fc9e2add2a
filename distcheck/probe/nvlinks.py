"""A GPU's NVLinks and its state in an NVSwitch fabric, as NVML reports them."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from distcheck.facts.base import Missing
from distcheck.facts.gpu import NOT_SUPPORTED, Fabric, LinkErrors, NvLinks, Remote
from distcheck.probe.nvml import Nvml, ask, asked, either, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPEED_MBPS = 164
_LINK_ERRORS = {
    "receive": 208, "integrity": 211, "failed recovery": 214,  # fifth generation
    "replay": 161, "recovery": 162, "crc": 163,
}  # fmt: skip
_OLD_LINK_ERRORS = {"replay": 0, "recovery": 1, "crc": 2, "data crc": 3}
"""The counters of nvmlDeviceGetNvLinkErrorCounter, for drivers before those fields."""
_MOST_LINKS = 64
_REMOTE: dict[int, Remote] = {0: "gpu", 1: "cpu", 2: "switch"}
_FABRICS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
FIELDS = (_SPEED_MBPS, *_LINK_ERRORS.values())
"""The fields of nvmlDeviceGetFieldValues that `read` needs of each link that is up."""
Fields = dict[tuple[int, int], "float | Missing"]
"""Values by field and link."""


def active(nvml: Nvml, handle: object) -> tuple[bool, ...] | Missing:
    """Return whether each NVLink is up; the first link that NVML refuses ends the list."""
    states: list[bool] = []
    for link in range(_MOST_LINKS):
        state = asked(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if isinstance(state, Missing):
            return tuple(states) if states else state
        states.append(state == 1)
    return tuple(states)


def read(nvml: Nvml, handle: object, links: tuple[bool, ...], up: tuple[int, ...], fields: Fields) -> NvLinks:
    """Read a GPU's NVLinks; `links` are its `active` ones, `up` their numbers, `fields` the values of `FIELDS`."""

    def remote(link: int) -> Remote:
        kind = asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        return "unknown" if isinstance(kind, Missing) else _REMOTE.get(kind, "unknown")

    errors = {name: [fields[field, link] for link in up] for name, field in _LINK_ERRORS.items()}
    if all(isinstance(value, Missing) for values in errors.values() for value in values):
        for name, counter in _OLD_LINK_ERRORS.items():
            errors[name] = [asked(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter) for link in up]
    counts = [value for values in errors.values() for value in values]
    refused = next((v for v in counts if isinstance(v, Missing) and v is not NOT_SUPPORTED), NOT_SUPPORTED)
    all_missing = bool(counts) and all(isinstance(value, Missing) for value in counts)
    return NvLinks(
        active=links,
        remote=tuple(remote(link) if on else "unknown" for link, on in enumerate(links)),
        version=asked(nvml, "nvmlDeviceGetNvLinkVersion", handle, up[0]) if up else NOT_SUPPORTED,
        speed_MBps=whole(fields[_SPEED_MBPS, up[0]]) if up else NOT_SUPPORTED,
        errors=refused if all_missing else _by_link(len(links), up, errors),
    )


def _by_link(number: int, up: tuple[int, ...], errors: Mapping[str, list[Any]]) -> tuple[LinkErrors, ...]:
    """Return the counters that are not 0 on some link, with one number per link."""
    counted = []
    for name, values in errors.items():
        row = [0] * number
        for link, value in zip(up, values, strict=True):
            row[link] = 0 if isinstance(value, Missing) else int(value)
        if any(row):
            counted.append(LinkErrors(name, tuple(row)))
    return tuple(counted)


def fabric(nvml: Nvml, handle: object) -> Fabric | Missing:
    """Return the fabric state in the newest form that the driver understands."""

    def versioned(kind: Any) -> Any:
        info = kind()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    def unversioned() -> Any:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info

    kinds = [getattr(nvml, name) for name in _FABRICS if hasattr(nvml, name)]
    info = either(*(partial(ask, nvml, partial(versioned, kind)) for kind in kinds), partial(ask, nvml, unversioned))
    if isinstance(info, Missing):
        return info
    cluster = bytes(info.clusterUuid)
    return Fabric(
        state=int(info.state),
        status=int(info.status),
        cluster=cluster.hex() if any(cluster) else "",
        clique=int(info.cliqueId),
        health_mask=_optional(info, "healthMask"),
        health_summary=_optional(info, "healthSummary"),
    )


def _optional(info: Any, name: str) -> int | Missing:
    value = getattr(info, name, None)
    return NOT_SUPPORTED if value is None else int(cast("int", value))
