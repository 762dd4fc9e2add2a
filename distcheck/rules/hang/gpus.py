"""What the GPU of a rank says about the rank: it is broken, it has nothing to do, or it runs kernels that wait.

A GPU on which a collective waits for the others is at 100 % and takes little power, such as 70 to 150 W of 700 W
(https://github.com/NVIDIA/nccl/issues/968, https://github.com/NVIDIA-NeMo/Speech/issues/9291); small kernels can look
the same, so this alone never makes a job hung. The GPU of the rank that did not come is at 0 %
(https://github.com/Theano/libgpuarray/issues/387).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from distcheck.facts.base import Missing
from distcheck.rules.gpu.amd_log import fatal_text
from distcheck.rules.gpu.xids import fatal

if TYPE_CHECKING:
    from distcheck.facts.hang import GpuUse, RankProcess

_FULL_PERCENT = 95
_WAITING_POWER = 0.4
"""The share of the power limit below which a GPU at 100 % only waits."""


def broken(process: RankProcess) -> str:
    """Return what is wrong with a rank's GPU: it is lost, or had a fatal error and runs nothing since; else empty."""
    for gpu in _known(process):
        said = [*map(fatal, gpu.xids), *map(fatal_text, gpu.driver_errors)]
        errors = [words for words in said if words and not any(gpu.utilization_percent[-1:])]
        if gpu.lost or errors:
            return f"GPU {gpu.index}: {gpu.lost or errors[-1]}"
    return ""


def activity(process: RankProcess) -> Literal["idle", "waits", ""]:
    """Return what a rank's GPU does in all samples: nothing, or kernels that wait; else empty."""
    gpus = _known(process)
    if not gpus or broken(process) or any(len(gpu.utilization_percent) < 2 for gpu in gpus):
        return ""
    if not any(percent for gpu in gpus for percent in gpu.utilization_percent):
        return "idle"
    return "waits" if all(map(_waits, gpus)) else ""


def _waits(gpu: GpuUse) -> bool:
    low = len(gpu.power_watts) > 1 and max(gpu.power_watts) <= _WAITING_POWER * (gpu.power_limit_watts or -1)
    return low and min(gpu.utilization_percent) >= _FULL_PERCENT


def readings(processes: Sequence[RankProcess]) -> str:
    """Return what the GPUs of ranks showed: 100 %, 68-71 of 700 W; empty if nothing is known."""
    gpus = [gpu for process in processes for gpu in _known(process)]
    if any(gpu.lost for gpu in gpus):
        return "lost"
    percent = _range([p for gpu in gpus for p in gpu.utilization_percent])
    watts = _range([round(w) for gpu in gpus for w in gpu.power_watts])
    limits = _range([round(gpu.power_limit_watts) for gpu in gpus if gpu.power_limit_watts])
    power = f"{watts}{f' of {limits}' if limits else ''} W" if watts else ""
    return ", ".join(filter(None, (percent and f"{percent} %", power)))


def _range(values: list[int]) -> str:
    return "-".join(map(str, sorted({min(values), max(values)}))) if values else ""


def _known(process: RankProcess) -> tuple[GpuUse, ...]:
    return () if isinstance(process.gpus, Missing) else process.gpus
