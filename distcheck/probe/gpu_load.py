"""What a node's GPUs show while the collectives run, watched through NVML or amdgpu by a child.

An idle GPU lowers its clocks and its PCIe link, and counters that are never reset say nothing about today. So the child
reads the counters before and after, and clocks, link and temperature under load. NVML may hang then as at any other
time, so the watcher is a child that can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import NOT_SUPPORTED, GpuHealth, GpuLoad, GpuLoads, LinkErrors, NvLinks
from distcheck.probe import child
from distcheck.probe.child import Question
from distcheck.probe.nvml import GPU_IS_LOST, NOT_FOUND, Nvml, ask, error_code, start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from distcheck.facts.gpu import Gpus

Number = TypeVar("Number", int, float)

LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 5.0
"""Time to answer after the collectives; reading 8 GPUs takes a fraction of a second."""
_IDLE = 0x1
_SM = 1
_WATCH = Question(__name__, "NVML", "a GPU or its driver hangs", call="watched")
_WATCH_AMD = Question("distcheck.probe.amdgpu_health", "amdgpu", "a GPU or its driver hangs", call="watched")


class Look(msgspec.Struct, frozen=True):
    """One GPU at one moment; None for values that NVML does not return."""

    event_reasons: int | None
    sm_MHz: int | None  # noqa: N815 the unit's own spelling
    pcie_generation: int | None
    temperature_celsius: int | None

    @property
    def busy(self) -> bool:
        """Return whether the GPU had work, by NVML's reasons for its clocks."""
        return self.event_reasons is not None and not self.event_reasons & _IDLE


class Watch:
    """A running watch; `answer` holds its result when it is over."""

    def __init__(self) -> None:
        self.answer: GpuLoads | Missing | None = None
        """None: no GPU to watch."""


@contextlib.asynccontextmanager
async def watching(gpus: Gpus | Missing | None, seconds: float) -> AsyncIterator[Watch]:
    """Watch the GPUs whose condition this process has read, during the body, up to `seconds`."""
    watch = Watch()
    devices = gpus.devices if gpus is not None and not isinstance(gpus, Missing) else ()
    uuids = tuple(gpu.uuid for gpu in devices if gpu.health is not None and isinstance(gpu.uuid, str))
    if not uuids:
        yield watch
        return
    over = asyncio.Event()
    amd = any(gpu.health is not None and gpu.health.amd is not None for gpu in devices)
    question = (_WATCH_AMD if amd else _WATCH)._replace(arguments=uuids)
    asking = asyncio.ensure_future(child.ask(question, GpuLoads, seconds, until=over, patience=_ANSWER_SECONDS))
    try:
        yield watch
        over.set()
        watch.answer = await asking
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


def watch(nvml: Nvml, uuids: Sequence[str], wait: Callable[[float], bool]) -> GpuLoads:
    """Watch GPUs until `wait`, called with seconds, returns True."""
    from distcheck.probe import gpu_health

    began = time.monotonic()
    found = {uuid: ask(nvml, partial(nvml.nvmlDeviceGetHandleByUUID, uuid)) for uuid in uuids}
    lost = {uuid: handle.reason for uuid, handle in found.items() if isinstance(handle, Missing) and _is_gone(handle)}
    handles = {uuid: handle for uuid, handle in found.items() if not isinstance(handle, Missing)}
    before = {uuid: gpu_health.read(nvml, handle) for uuid, handle in handles.items()}
    looks: dict[str, list[Look]] = {uuid: [] for uuid in handles}
    while not wait(LOOK_SECONDS):
        for uuid, handle in handles.items():
            looks[uuid].append(_look(nvml, handle))
    loads = {}
    for uuid, handle in handles.items():
        after = gpu_health.read(nvml, handle)
        if gone := gpu_health.lost(after):
            lost[uuid] = gone
        else:
            loads[uuid] = load(before[uuid], after, looks[uuid], time.monotonic() - began)
    return GpuLoads(loads, lost)


def _is_gone(refused: Missing) -> bool:
    """Return whether NVML has lost a GPU that it had a moment ago."""
    return error_code(refused.reason) in {GPU_IS_LOST, NOT_FOUND}


def load(before: GpuHealth, after: GpuHealth, looks: Sequence[Look], seconds: float) -> GpuLoad:
    """Return what one GPU showed between two readings of its condition."""
    busy = [look for look in looks if look.busy]
    reasons = [1 << bit for bit in range(64) if any((look.event_reasons or 0) >> bit & 1 for look in busy)]
    return GpuLoad(
        seconds=round(seconds, 3),
        busy=len(busy),
        event_reasons={bit: sum(1 for look in busy if (look.event_reasons or 0) & bit) for bit in reasons},
        software_thermal_seconds=_growth(before.clocks.software_thermal_seconds, after.clocks.software_thermal_seconds),
        hardware_thermal_seconds=_growth(before.clocks.hardware_thermal_seconds, after.clocks.hardware_thermal_seconds),
        power_brake_seconds=_growth(before.clocks.power_brake_seconds, after.clocks.power_brake_seconds),
        sm_MHz=_highest(look.sm_MHz for look in busy),
        pcie_generation=_highest(look.pcie_generation for look in busy),
        temperature_celsius=_highest(look.temperature_celsius for look in busy),
        replays=_growth(before.pcie.replays, after.pcie.replays),
        uncorrected_ecc=_growth(before.ecc.uncorrected_volatile, after.ecc.uncorrected_volatile),
        nvlink_errors=_link_growth(before.nvlinks, after.nvlinks),
    )


def _look(nvml: Nvml, handle: object) -> Look:
    def known(name: str, *args: object) -> int | None:
        value = ask(nvml, lambda: int(getattr(nvml, name)(handle, *args)))
        return None if isinstance(value, Missing) else value

    reasons = known("nvmlDeviceGetCurrentClocksEventReasons")
    return Look(
        known("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons,
        known("nvmlDeviceGetClockInfo", _SM),
        known("nvmlDeviceGetCurrPcieLinkGeneration"),
        known("nvmlDeviceGetTemperature", 0),
    )


def _growth(before: Number | Missing, after: Number | Missing) -> Number | Missing:
    """Return how much a counter grew, `Missing` if it was reset in between."""
    if isinstance(before, Missing) or isinstance(after, Missing):
        return after if isinstance(after, Missing) else NOT_SUPPORTED
    return after - before if after >= before else Missing(reason="the counter was reset in between")


def _link_growth(before: NvLinks | Missing, after: NvLinks | Missing) -> tuple[LinkErrors, ...]:
    """Return the counters that grew on some link; a counter without a row before was 0."""
    then, now = _link_errors(before), _link_errors(after)
    if then is None or now is None:
        return ()
    known = {row.counter: row.by_link for row in then}
    grown = []
    for row in now:
        earlier = known.get(row.counter, (0,) * len(row.by_link))
        growth = tuple(max(0, new - old) for new, old in zip(row.by_link, earlier, strict=False))
        if any(growth):
            grown.append(LinkErrors(row.counter, growth))
    return tuple(grown)


def _link_errors(links: NvLinks | Missing) -> tuple[LinkErrors, ...] | None:
    return None if isinstance(links, Missing) or isinstance(links.errors, Missing) else links.errors


def _highest(values: Iterable[int | None]) -> int | Missing:
    return max((value for value in values if value is not None), default=NOT_SUPPORTED)


def until_closed(seconds: float) -> bool:
    """Wait for `seconds`; return whether the parent has closed this process's standard input."""
    readable, _, _ = select.select([sys.stdin.fileno()], [], [], seconds)
    return bool(readable)


def watched(*uuids: str) -> GpuLoads | Missing:
    """Watch GPUs until standard input is closed. NVML can hang: callers use `watching`."""
    from distcheck.probe.xids import recent

    nvml = start()
    if isinstance(nvml, Missing):
        return nvml
    return msgspec.structs.replace(watch(nvml, uuids, until_closed), xids=recent())
