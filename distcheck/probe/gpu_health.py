"""A GPU's condition as NVML reports it to any user, and the links between a node's GPUs.

Each value is a separate call, so that what a card, a virtual machine or an old driver lacks costs that value alone.
Fields of ``nvmlDeviceGetFieldValues`` are given by their numbers in nvml.h: an old nvidia-ml-py does not know the names
that a new driver answers to.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from distcheck.facts.base import MOST, Missing
from distcheck.facts.gpu import (
    NOT_SUPPORTED,
    Ecc,
    Fabric,
    GpuClocks,
    GpuHealth,
    GpuProcess,
    LinkErrors,
    NvLinks,
    PcieLink,
    PeerAccess,
    RemappedRows,
    Remote,
)
from distcheck.facts.ranges import fold
from distcheck.probe.nvml import FUNCTION_NOT_FOUND, VERSION_MISMATCH, Nvml, ask, error_code, refusal, valid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

_RECOVERY_ACTION = 230
_REPLAYS = 94
_SPEED_MBPS = 164
_SLOWED_SECONDS = {
    "software_thermal_seconds": 269,
    "hardware_thermal_seconds": 270,
    "power_brake_seconds": 271,
}
_LINK_ERRORS = {
    "receive": 208, "integrity": 211, "failed recovery": 214,  # fifth generation
    "replay": 161, "recovery": 162, "crc": 163,
}  # fmt: skip
_OLD_LINK_ERRORS = {"replay": 0, "recovery": 1, "crc": 2, "data crc": 3}
"""The counters of nvmlDeviceGetNvLinkErrorCounter, for drivers before those fields."""
_MOST_LINKS = 64
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's union of values, by nvmlValueType_t."""
_OTHER_WORDS = {FUNCTION_NOT_FOUND, VERSION_MISMATCH, None}
"""Errors after which another call for the same value may work; None: nvidia-ml-py does not know the call."""
_CPU_WORDS, _NODE_WORDS = 32, 16
_REMOTE: dict[int, Remote] = {0: "gpu", 1: "cpu", 2: "switch"}
_FABRICS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
_GRAPHICS, _SM = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_READ, _WRITE, _NVLINK = 0, 1, 2
_IMEX = "dev/nvidia-caps-imex-channels"

_Fields = dict[tuple[int, int], "float | Missing"]


def read(nvml: Nvml, handle: object) -> GpuHealth:
    """Read the condition of one GPU."""

    def get(name: str, *args: object) -> Any:
        return _asked(nvml, name, handle, *args)

    active = _active_links(nvml, handle)
    up = () if isinstance(active, Missing) else tuple(link for link, on in enumerate(active) if on)
    fields = _fields(nvml, handle, up)
    ecc_mode = get("nvmlDeviceGetEccMode")
    return GpuHealth(
        recovery_action=_whole(fields[_RECOVERY_ACTION, 0]),
        ecc=Ecc(
            enabled=_known(ecc_mode, lambda mode: mode[0] == 1),
            enabled_after_reset=_known(ecc_mode, lambda mode: mode[1] == 1),
            corrected_volatile=get("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
            uncorrected_volatile=get("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            corrected_aggregate=get("nvmlDeviceGetTotalEccErrors", _CORRECTED, _AGGREGATE),
            uncorrected_aggregate=get("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE),
        ),
        remapped_rows=_known(
            get("nvmlDeviceGetRemappedRows"), lambda rows: RemappedRows(rows[0], rows[1], rows[2] != 0, rows[3] != 0)
        ),
        retired_pages_pending=_known(get("nvmlDeviceGetRetiredPagesPendingStatus"), bool),
        clocks=GpuClocks(
            event_reasons=_either(
                partial(get, "nvmlDeviceGetCurrentClocksEventReasons"),
                partial(get, "nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
            sm_MHz=get("nvmlDeviceGetClockInfo", _SM),
            sm_max_MHz=get("nvmlDeviceGetMaxClockInfo", _SM),
            sm_application_MHz=get("nvmlDeviceGetApplicationsClock", _GRAPHICS),
            sm_application_default_MHz=get("nvmlDeviceGetDefaultApplicationsClock", _GRAPHICS),
            **{name: _known(fields[field, 0], lambda ns: ns / 1e9) for name, field in _SLOWED_SECONDS.items()},
        ),
        pcie=PcieLink(
            generation=get("nvmlDeviceGetCurrPcieLinkGeneration"),
            width=get("nvmlDeviceGetCurrPcieLinkWidth"),
            max_generation=get("nvmlDeviceGetMaxPcieLinkGeneration"),
            max_width=get("nvmlDeviceGetMaxPcieLinkWidth"),
            gpu_max_generation=get("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            replays=_either(partial(get, "nvmlDeviceGetPcieReplayCounter"), lambda: _whole(fields[_REPLAYS, 0])),
        ),
        nvlinks=active if isinstance(active, Missing) else _nvlinks(nvml, handle, active, up, fields),
        fabric=_fabric(nvml, handle),
        power_limit_watts=_known(get("nvmlDeviceGetEnforcedPowerLimit"), lambda milliwatts: milliwatts / 1000),
        power_limit_default_watts=_known(get("nvmlDeviceGetPowerManagementDefaultLimit"), lambda mw: mw / 1000),
        temperature_celsius=_either(
            partial(get, "nvmlDeviceGetTemperatureV", 0), partial(get, "nvmlDeviceGetTemperature", 0)
        ),
        slowdown_celsius=get("nvmlDeviceGetTemperatureThreshold", 1),
        compute_mode=get("nvmlDeviceGetComputeMode"),
        persistence=_known(get("nvmlDeviceGetPersistenceMode"), bool),
        processes=_known(get("nvmlDeviceGetComputeRunningProcesses_v3"), _processes),
        mps_processes=_known(get("nvmlDeviceGetMPSComputeRunningProcesses_v3"), _processes),
        utilisation_percent=_known(get("nvmlDeviceGetUtilizationRates"), lambda rates: int(rates.gpu)),
        display=_known(get("nvmlDeviceGetDisplayActive"), bool),
        module=get("nvmlDeviceGetModuleId"),
        minor=get("nvmlDeviceGetMinorNumber"),
        vbios=_known(get("nvmlDeviceGetVbiosVersion"), _text),
        cpus=_known(get("nvmlDeviceGetCpuAffinity", _CPU_WORDS), lambda words: fold(_bits(words))),
        numa_node=_known(get("nvmlDeviceGetMemoryAffinity", _NODE_WORDS, 0), _only),
        own_numa_node=get("nvmlDeviceGetNumaNodeId"),
    )


def peer_access(nvml: Nvml, handles: Mapping[int, object]) -> tuple[PeerAccess, ...]:
    """Return for every pair of GPUs, by index, whether they can access each other's memory."""

    def status(first: int, second: int, kind: int) -> int | Missing:
        return ask(nvml, lambda: int(nvml.nvmlDeviceGetP2PStatus(handles[first], handles[second], kind)))

    return tuple(
        PeerAccess((first, second), *(status(first, second, kind) for kind in (_READ, _WRITE, _NVLINK)))
        for first, second in combinations(handles, 2)
    )


def confidential_compute(nvml: Nvml) -> bool | Missing:
    """Return whether the node's GPUs are in confidential computing mode."""
    return ask(nvml, lambda: int(nvml.nvmlSystemGetConfComputeState().ccFeature) == 1)


def mps_daemon(root: Path = Path("/")) -> bool:
    """Return whether the Multi-Process Service runs; the kernel cuts its name to 15 letters."""
    for path in (root / "proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if path.read_text().strip() == "nvidia-cuda-mps":
                return True
    return False


def imex_channel(root: Path = Path("/")) -> Literal["usable", "denied", "absent"]:
    """Return whether this process may use an IMEX channel to other nodes' memory."""
    channels = list((root / _IMEX).glob("channel*"))
    if any(os.access(channel, os.R_OK | os.W_OK) for channel in channels):
        return "usable"
    return "denied" if channels else "absent"


def reasons(health: GpuHealth) -> Iterable[str]:
    """Yield the reasons of missing values."""
    for part in (health, health.ecc, health.clocks, health.pcie):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, Missing):
                yield value.reason


def _asked(nvml: Nvml, name: str, *args: object) -> Any:
    """Call one of NVML's functions by name; an old nvidia-ml-py may not have it."""
    return ask(nvml, lambda: getattr(nvml, name)(*args))


def _known(value: Any, use: Callable[[Any], T]) -> T | Missing:
    """Apply `use` to a value; a missing value stays missing."""
    return value if isinstance(value, Missing) else use(value)


def _either(*calls: Callable[[], Any]) -> Any:
    """Return the first answer of calls for the same value, else why there is none.

    That a call does not exist is only the reason if no other is known.
    """
    refused = []
    for call in calls:
        answer = call()
        if not isinstance(answer, Missing):
            return answer
        refused.append(answer)
    return next((answer for answer in refused if error_code(answer.reason) not in _OTHER_WORDS), refused[0])


def _whole(value: float | Missing) -> int | Missing:
    return value if isinstance(value, Missing) else int(value)


def _text(value: str | bytes) -> str:
    """Return NVML's text: nvidia-ml-py before 11.515 returned bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _processes(found: Iterable[Any]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(int(p.pid), _memory_of(p.usedGpuMemory)) for p in found)


def _memory_of(used_bytes: int | None) -> int | None:
    return None if used_bytes is None or used_bytes > MOST else int(used_bytes)


def _bits(words: Iterable[int]) -> list[int]:
    return [64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _only(words: Iterable[int]) -> int | Missing:
    nodes = _bits(words)
    return nodes[0] if len(nodes) == 1 else Missing(reason=f"NVML names {len(nodes)} NUMA nodes")


def _fields(nvml: Nvml, handle: object, links: tuple[int, ...]) -> _Fields:
    """Read all fields in one call, or only the GPU's if the driver refuses that many."""
    of_gpu = [(field, 0) for field in (_RECOVERY_ACTION, _REPLAYS, *_SLOWED_SECONDS.values())]
    of_links = [(field, link) for link in links for field in (_SPEED_MBPS, *_LINK_ERRORS.values())]
    known: _Fields = dict.fromkeys((*of_gpu, *of_links), NOT_SUPPORTED)
    for keys in ([*of_gpu, *of_links], of_gpu):
        answer: Any = _asked(nvml, "nvmlDeviceGetFieldValues", handle, keys)
        if not isinstance(answer, Missing):
            return known | {key: _field(value) for key, value in zip(keys, answer, strict=True)}
        known |= dict.fromkeys(keys, answer)
    return known


def _field(answer: Any) -> float | Missing:
    if answer.nvmlReturn != 0:
        return refusal(int(answer.nvmlReturn), "no value")
    kind = int(answer.valueType)
    value = getattr(answer.value, _VALUES[kind], None) if kind < len(_VALUES) else None
    return Missing(reason=f"NVML returned a value of unknown type {kind}") if value is None else valid(value)


def _active_links(nvml: Nvml, handle: object) -> tuple[bool, ...] | Missing:
    """Return whether each NVLink is up; the first link that NVML refuses ends the list."""
    states: list[bool] = []
    for link in range(_MOST_LINKS):
        state = _asked(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if isinstance(state, Missing):
            return tuple(states) if states else state
        states.append(state == 1)
    return tuple(states)


def _nvlinks(nvml: Nvml, handle: object, active: tuple[bool, ...], up: tuple[int, ...], fields: _Fields) -> NvLinks:
    def remote(link: int) -> Remote:
        kind = _asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        return "unknown" if isinstance(kind, Missing) else _REMOTE.get(kind, "unknown")

    errors = {name: [fields[field, link] for link in up] for name, field in _LINK_ERRORS.items()}
    if all(isinstance(value, Missing) for values in errors.values() for value in values):
        for name, counter in _OLD_LINK_ERRORS.items():
            errors[name] = [_asked(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter) for link in up]
    counts = [value for values in errors.values() for value in values]
    refused = next((v for v in counts if isinstance(v, Missing) and v is not NOT_SUPPORTED), NOT_SUPPORTED)
    all_missing = bool(counts) and all(isinstance(value, Missing) for value in counts)
    return NvLinks(
        active=active,
        remote=tuple(remote(link) if on else "unknown" for link, on in enumerate(active)),
        version=_asked(nvml, "nvmlDeviceGetNvLinkVersion", handle, up[0]) if up else NOT_SUPPORTED,
        speed_MBps=_whole(fields[_SPEED_MBPS, up[0]]) if up else NOT_SUPPORTED,
        errors=refused if all_missing else _by_link(len(active), up, errors),
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


def _fabric(nvml: Nvml, handle: object) -> Fabric | Missing:
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
    info = _either(*(partial(ask, nvml, partial(versioned, kind)) for kind in kinds), partial(ask, nvml, unversioned))
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
