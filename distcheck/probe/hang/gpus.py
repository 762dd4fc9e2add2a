"""The GPUs that ranks use, by NVML in both samples; it may hang on a wedged GPU, so a child asks that can be killed.

Without a rank that has loaded CUDA nothing is asked. A rank's GPU is the one on which NVML lists its process; in a pid
namespace, where NVML's numbers are the host's, and for a lost GPU, which lists none, it is the one that
CUDA_VISIBLE_DEVICES and LOCAL_RANK name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Xid
from distcheck.facts.hang import GpuUse, RankProcess, RunningJob
from distcheck.probe import gpu, xids
from distcheck.probe.child import Conversation, Question
from distcheck.probe.hang.processes import ProcessTable
from distcheck.probe.kernel_files import link_name
from distcheck.probe.nvml import Nvml, asked, start
from distcheck.selection.visible_devices import device_of, visible

_WATCH = Question(__name__, "NVML", "a GPU or its driver hangs", call="watched")
_ANSWER_SECONDS = 3.0
_READINGS = ("utilization_percent", "memory_used_bytes", "power_watts")
_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h


class WatchedGpu(msgspec.Struct, frozen=True):
    """A GPU in both samples."""

    gpu: Gpu
    use: GpuUse
    pids: tuple[int, ...]
    """The processes that compute on it, in the host's numbers."""
    xids: tuple[Xid, ...]
    """The last day's."""


def watch(seconds: float) -> Conversation:
    """Start to ask NVML: it takes its first sample now, and its second when `seen` is called, `seconds` later."""
    return Conversation(_WATCH, seconds + 4 * _ANSWER_SECONDS, None)


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
    """Return a job with the GPUs of its ranks, or why NVML gave no answer."""
    if isinstance(found, Missing):
        return replace(job, ranks=tuple(replace(r, gpus=found) if r.cuda else r for r in job.ranks))
    ranks = (replace(r, gpus=uses(found, r, table.environment(r.pid) or {})) if r.cuda else r for r in job.ranks)
    return replace(job, ranks=tuple(ranks))


def uses(found: tuple[WatchedGpu, ...], rank: RankProcess, environ: Mapping[str, str]) -> tuple[GpuUse, ...]:
    """Return the GPUs that a rank uses, with the Xids since its process started."""
    host = link_name(Path("/proc/self/ns/pid")) == _INITIAL_NAMESPACE
    listed = [w for w in found if host and rank.pid in w.pids]
    # For CUDA a GPU that was lost later still has its place.
    whole = tuple(replace(w.gpu, lost="", uuid=_name(w.gpu)) for w in found)
    own = device_of(rank.local_rank, visible(environ.get("CUDA_VISIBLE_DEVICES"), whole).uuids)
    named = [w for w in found if own in {_name(w.gpu), *w.gpu.mig_uuids}]
    age = rank.moments[-1].age_seconds
    return tuple(
        replace(w.use, xids=tuple(x for x in w.xids if x.seconds_ago is not None and x.seconds_ago < age))
        for w in [w for w in named if w in listed] or listed or named
    )


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
