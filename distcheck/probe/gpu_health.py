"""A GPU's condition as NVML reports it to any user, and what the GPUs of a node share.

Each value is a separate call, so that what a card, a virtual machine or an old driver lacks costs that value alone.
Fields of ``nvmlDeviceGetFieldValues`` are given by their numbers in nvml.h: an old nvidia-ml-py does not know the names
that a new driver answers to.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distcheck.facts.base import MOST, Missing
from distcheck.facts.gpu import (
    NOT_SUPPORTED,
    Ecc,
    GpuClocks,
    GpuHealth,
    GpuProcess,
    PcieLink,
    PeerAccess,
    RemappedRows,
)
from distcheck.facts.ranges import fold
from distcheck.probe import nvlinks
from distcheck.probe.kernel_files import contents
from distcheck.probe.nvml import GPU_IS_LOST, Nvml, ask, asked, either, error_code, known, refusal, valid, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_RECOVERY_ACTION = 230
_REPLAYS = 94
_SLOWED_SECONDS = {
    "software_thermal_seconds": 269,
    "hardware_thermal_seconds": 270,
    "power_brake_seconds": 271,
}
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's union of values, by nvmlValueType_t."""
_CPU_WORDS, _NODE_WORDS = 32, 16
_GRAPHICS = 0
_UNCORRECTED, _VOLATILE = 1, 0
_READ, _WRITE, _NVLINK = 0, 1, 2
_IMEX = "dev/nvidia-caps-imex-channels"


def read(nvml: Nvml, handle: object) -> GpuHealth:
    """Read the condition of one GPU."""

    def get(name: str, *args: object) -> Any:
        return asked(nvml, name, handle, *args)

    active = nvlinks.active(nvml, handle)
    up = () if isinstance(active, Missing) else tuple(link for link, on in enumerate(active) if on)
    fields = _fields(nvml, handle, up)
    ecc_mode = get("nvmlDeviceGetEccMode")
    return GpuHealth(
        recovery_action=whole(fields[_RECOVERY_ACTION, 0]),
        ecc=Ecc(
            enabled=known(ecc_mode, lambda mode: mode[0] == 1),
            enabled_after_reset=known(ecc_mode, lambda mode: mode[1] == 1),
            uncorrected_volatile=get("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        ),
        remapped_rows=known(
            get("nvmlDeviceGetRemappedRows"), lambda rows: RemappedRows(rows[0], rows[1], rows[2] != 0, rows[3] != 0)
        ),
        retired_pages_pending=known(get("nvmlDeviceGetRetiredPagesPendingStatus"), bool),
        clocks=GpuClocks(
            event_reasons=either(
                partial(get, "nvmlDeviceGetCurrentClocksEventReasons"),
                partial(get, "nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
            sm_application_MHz=get("nvmlDeviceGetApplicationsClock", _GRAPHICS),
            sm_application_default_MHz=get("nvmlDeviceGetDefaultApplicationsClock", _GRAPHICS),
            **{name: known(fields[field, 0], lambda ns: ns / 1e9) for name, field in _SLOWED_SECONDS.items()},
        ),
        pcie=PcieLink(
            width=get("nvmlDeviceGetCurrPcieLinkWidth"),
            max_generation=get("nvmlDeviceGetMaxPcieLinkGeneration"),
            max_width=get("nvmlDeviceGetMaxPcieLinkWidth"),
            replays=either(partial(get, "nvmlDeviceGetPcieReplayCounter"), lambda: whole(fields[_REPLAYS, 0])),
        ),
        nvlinks=active if isinstance(active, Missing) else nvlinks.read(nvml, handle, active, up, fields),
        fabric=nvlinks.fabric(nvml, handle),
        power_limit_watts=known(get("nvmlDeviceGetEnforcedPowerLimit"), lambda milliwatts: milliwatts / 1000),
        power_limit_default_watts=known(get("nvmlDeviceGetPowerManagementDefaultLimit"), lambda mw: mw / 1000),
        temperature_celsius=either(
            partial(get, "nvmlDeviceGetTemperatureV", 0), partial(get, "nvmlDeviceGetTemperature", 0)
        ),
        slowdown_celsius=get("nvmlDeviceGetTemperatureThreshold", 1),
        compute_mode=get("nvmlDeviceGetComputeMode"),
        processes=known(get("nvmlDeviceGetComputeRunningProcesses_v3"), _processes),
        mps_processes=known(get("nvmlDeviceGetMPSComputeRunningProcesses_v3"), _processes),
        display=known(get("nvmlDeviceGetDisplayActive"), bool),
        vbios=get("nvmlDeviceGetVbiosVersion"),
        cpus=known(get("nvmlDeviceGetCpuAffinity", _CPU_WORDS), lambda words: fold(_bits(words))),
        numa_node=known(get("nvmlDeviceGetMemoryAffinity", _NODE_WORDS, 0), _only),
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
    return any(contents(path) == "nvidia-cuda-mps" for path in (root / "proc").glob("[0-9]*/comm"))


def imex_channel(root: Path = Path("/")) -> Literal["usable", "denied", "absent"]:
    """Return whether this process may use an IMEX channel to other nodes' memory."""
    channels = list((root / _IMEX).glob("channel*"))
    if any(os.access(channel, os.R_OK | os.W_OK) for channel in channels):
        return "usable"
    return "denied" if channels else "absent"


def lost(health: GpuHealth) -> str:
    """Return NVML's error if a value could not be read because the GPU is lost, else ''."""
    parts = (health, health.ecc, health.clocks, health.pcie)
    values = (getattr(part, name) for part in parts for name in part.__struct_fields__)
    reasons = (value.reason for value in values if isinstance(value, Missing))
    return next((reason for reason in reasons if error_code(reason) == GPU_IS_LOST), "")


def _processes(found: Iterable[Any]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(int(p.pid), _memory_of(p.usedGpuMemory)) for p in found)


def _memory_of(used_bytes: int | None) -> int | None:
    return None if used_bytes is None or used_bytes > MOST else int(used_bytes)


def _bits(words: Iterable[int]) -> list[int]:
    return [64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _only(words: Iterable[int]) -> int | Missing:
    nodes = _bits(words)
    return nodes[0] if len(nodes) == 1 else Missing(reason=f"NVML names {len(nodes)} NUMA nodes")


def _fields(nvml: Nvml, handle: object, links: tuple[int, ...]) -> nvlinks.Fields:
    """Read all fields in one call, or only the GPU's if the driver refuses that many."""
    of_gpu = [(field, 0) for field in (_RECOVERY_ACTION, _REPLAYS, *_SLOWED_SECONDS.values())]
    of_links = [(field, link) for link in links for field in nvlinks.FIELDS]
    found: nvlinks.Fields = dict.fromkeys((*of_gpu, *of_links), NOT_SUPPORTED)
    for keys in ([*of_gpu, *of_links], of_gpu):
        answer: Any = asked(nvml, "nvmlDeviceGetFieldValues", handle, keys)
        if not isinstance(answer, Missing):
            return found | {key: _field(value) for key, value in zip(keys, answer, strict=True)}
        found |= dict.fromkeys(keys, answer)
    return found


def _field(answer: Any) -> float | Missing:
    if answer.nvmlReturn != 0:
        return refusal(int(answer.nvmlReturn), "no value")
    kind = int(answer.valueType)
    value = getattr(answer.value, _VALUES[kind], None) if kind < len(_VALUES) else None
    return Missing(reason=f"NVML returned a value of unknown type {kind}") if value is None else valid(value)
