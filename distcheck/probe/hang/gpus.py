"""The GPUs that ranks use, by NVML or amdgpu in both samples; a wedged GPU may not answer, so a child asks.

Without a rank that has loaded CUDA or HIP nothing is asked. A rank's GPU is the one on which the driver lists its
process; in a pid namespace, where the driver's numbers are the host's, and for a lost GPU, which lists none, it is the
one that CUDA's or ROCm's variables and LOCAL_RANK name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import DriverError, Gpu, Xid
from distcheck.facts.hang import GpuUse, RankProcess, RunningJob
from distcheck.probe import gpu, xids
from distcheck.probe.child import Conversation, Question
from distcheck.probe.hang.processes import ProcessTable
from distcheck.probe.kernel_files import link_name
from distcheck.probe.nvml import Nvml, asked, start
from distcheck.selection.gpu_variables import selected
from distcheck.selection.visible_devices import device_of

_WATCH = Question(__name__, "NVML", "a GPU or its driver hangs", call="watched")
_WATCH_AMD = Question("distcheck.probe.hang.amd_gpus", "amdgpu", "a GPU or its driver hangs", call="watched")
_ANSWER_SECONDS = 3.0
_READINGS = ("utilization_percent", "memory_used_bytes", "power_watts")
_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h


E = TypeVar("E", Xid, DriverError)


class WatchedGpu(msgspec.Struct, frozen=True):
    """A GPU in both samples."""

    gpu: Gpu
    use: GpuUse
    pids: tuple[int, ...]
    """The processes that compute on it, in the host's numbers."""
    xids: tuple[Xid, ...] = ()
    """The last day's."""
    driver_errors: tuple[DriverError, ...] = ()
    """The last day's, of an AMD GPU."""


def watch(seconds: float, *, amd: bool = False) -> Conversation:
    """Start to ask the driver: a first sample now, and a second when `seen` is called, `seconds` later."""
    return Conversation(_WATCH_AMD if amd else _WATCH, seconds + 4 * _ANSWER_SECONDS, None)


def seen(watching: Conversation) -> tuple[WatchedGpu, ...] | Missing:
    """Return the GPUs of the node; `Missing` where a sample takes more than `_ANSWER_SECONDS`."""
    import asyncio

    async def heard() -> tuple[WatchedGpu, ...] | Missing:
        kind = tuple[WatchedGpu, ...]
        try:
            first = await watching.hear(kind, 2 * _ANSWER_SECONDS)  # on a busy node it may just have started
            watching.hang_up()
            last = first if isinstance(first, Missing) else await watching.hear(kind, _ANSWER_SECONDS)
            return last if isinstance(last, Missing) else tuple(map(_joined, first, last))
        finally:
            await watching.close(0.0)

    return asyncio.run(heard())


def added(job: RunningJob, found: tuple[WatchedGpu, ...] | Missing, table: ProcessTable) -> RunningJob:
    """Return a job with the GPUs of its ranks, or why their driver gave no answer."""

    def of(rank: RankProcess) -> tuple[GpuUse, ...] | Missing:
        vendor = "amd" if table.has_hip(rank.pid) else "nvidia"
        return found if isinstance(found, Missing) else uses(found, rank, table.environment(rank.pid) or {}, vendor)

    return replace(job, ranks=tuple(replace(r, gpus=of(r)) if r.cuda else r for r in job.ranks))


def uses(
    found: tuple[WatchedGpu, ...], rank: RankProcess, environ: Mapping[str, str], vendor: str = "nvidia"
) -> tuple[GpuUse, ...]:
    """Return the GPUs that a rank uses, with the driver's errors since its process started."""
    host = link_name(Path("/proc/self/ns/pid")) == _INITIAL_NAMESPACE
    listed = [w for w in found if host and rank.pid in w.pids]
    # For CUDA a GPU that was lost later still has its place.
    whole = tuple(replace(w.gpu, lost="", uuid=_name(w.gpu)) for w in found)
    own = device_of(rank.local_rank, selected(environ, whole, vendor).shown.uuids)
    named = [w for w in found if own in {_name(w.gpu), *w.gpu.mig_uuids}]
    age = rank.moments[-1].age_seconds
    return tuple(
        replace(w.use, xids=_since(age, w.xids), driver_errors=_since(age, w.driver_errors))
        for w in [w for w in named if w in listed] or listed or named
    )


def _since(age: float, errors: tuple[E, ...]) -> tuple[E, ...]:
    return tuple(error for error in errors if error.seconds_ago is not None and error.seconds_ago < age)


def _name(device: Gpu) -> str:
    return device.uuid if isinstance(device.uuid, str) else f"GPU-{device.index}"


def watched() -> Iterator[tuple[WatchedGpu, ...] | Missing]:
    """Yield a sample of the GPUs now, and one when standard input ends. NVML can hang: callers use `watch`."""
    nvml = start()
    yield nvml if isinstance(nvml, Missing) else _sample(nvml)
    sys.stdin.read()
    yield nvml if isinstance(nvml, Missing) else _sample(nvml)


def _sample(nvml: Nvml) -> tuple[WatchedGpu, ...] | Missing:
    found, log = gpu.collect(), xids.recent()
    if isinstance(found, Missing):
        return found
    errors = () if isinstance(log, Missing) else log
    return tuple(_now(nvml, device, tuple(x for x in errors if x.pci == device.pci)) for device in found.devices)


def _now(nvml: Nvml, device: Gpu, errors: tuple[Xid, ...]) -> WatchedGpu:
    """Return a GPU at this moment; what NVML does not report stays empty."""
    handle = asked(nvml, "nvmlDeviceGetHandleByIndex", device.index)

    def get(name: str) -> Any:
        return handle if isinstance(handle, Missing) else asked(nvml, name, handle)

    used, watts = get("nvmlDeviceGetUtilizationRates"), get("nvmlDeviceGetPowerUsage")
    limit, running = get("nvmlDeviceGetEnforcedPowerLimit"), get("nvmlDeviceGetComputeRunningProcesses_v3")
    use = GpuUse(
        device.index,
        utilization_percent=() if isinstance(used, Missing) else (int(used.gpu),),
        memory_used_bytes=() if isinstance(device.memory_used_bytes, Missing) else (device.memory_used_bytes,),
        power_watts=() if isinstance(watts, Missing) else (watts / 1000,),
        power_limit_watts=None if isinstance(limit, Missing) else limit / 1000,
        lost=device.lost,
    )
    return WatchedGpu(device, use, () if isinstance(running, Missing) else tuple(int(p.pid) for p in running), errors)


def _joined(first: WatchedGpu, last: WatchedGpu) -> WatchedGpu:
    both = {name: getattr(first.use, name) + getattr(last.use, name) for name in _READINGS}
    return replace(last, use=replace(last.use, **both))
