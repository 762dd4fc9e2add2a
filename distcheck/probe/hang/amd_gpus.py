"""A node's AMD GPUs at one moment of a running job, from amdgpu's files; `hang.gpus` asks in a child."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.hang import GpuUse
from distcheck.probe import amdgpu, amdgpu_health, amdgpu_log, xids
from distcheck.probe.hang.gpus import WatchedGpu
from distcheck.probe.kernel_files import contents, integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.gpu import DriverError, Gpu
    from distcheck.probe.amdgpu import Node


def watched() -> Iterator[tuple[WatchedGpu, ...] | Missing]:
    """Yield a sample of the GPUs now, and one when standard input ends."""
    yield sample()
    sys.stdin.read()
    yield sample()


def sample(root: Path = Path("/"), log: Path = xids.KERNEL_LOG) -> tuple[WatchedGpu, ...] | Missing:
    """Return the GPUs at this moment. A lost one, which has left KFD's list, gets its place on the bus in it again."""
    found, errors = amdgpu.collect(root), amdgpu_log.recent(log)
    if isinstance(found, Missing):
        return found
    known = () if isinstance(errors, Missing) else errors
    nodes = {node.ordinal: node for node in amdgpu.nodes_of(root)}
    gpus = [_now(root, gpu, nodes.get(gpu.index), tuple(e for e in known if e.pci == gpu.pci)) for gpu in found.devices]
    there = [str(watched.gpu.pci) for watched in gpus if not watched.gpu.lost]
    return tuple(sorted(gpus, key=lambda w: str(w.gpu.pci)) if there == sorted(there) else gpus)


def _now(root: Path, gpu: Gpu, node: Node | None, errors: tuple[DriverError, ...]) -> WatchedGpu:
    """Return a GPU at this moment, without what the driver does not report, nor of a partition what is its card's."""
    if node is None:
        return WatchedGpu(gpu, GpuUse(gpu.index, lost=gpu.lost), (), driver_errors=errors)
    device = node.device(root)
    sensors = amdgpu_health.sensors_of(device)
    power = [integer(sensors / name) for name in ("power1_average", "power1_input")]
    whole = not (isinstance(gpu.uuid, str) and "/" in gpu.uuid)
    use = GpuUse(
        gpu.index,
        utilization_percent=_one(integer(device / "gpu_busy_percent")) if whole else (),
        memory_used_bytes=() if isinstance(gpu.memory_used_bytes, Missing) else (gpu.memory_used_bytes,),
        power_watts=tuple(watts / 1e6 for watts in power if watts is not None)[:1] if whole else (),
        power_limit_watts=(integer(sensors / "power1_cap") or 0) / 1e6 or None,
    )
    processes = amdgpu_health.processes(root, contents(node.folder / "gpu_id"))
    pids = () if isinstance(processes, Missing) else tuple(process.pid for process in processes)
    return WatchedGpu(gpu, use, pids, driver_errors=errors)


def _one(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)
