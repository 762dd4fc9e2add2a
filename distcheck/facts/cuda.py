"""GPUs as CUDA shows them to a process."""

from __future__ import annotations

from distcheck.facts.base import Count, Facts, Whole


class CudaDevice(Facts, frozen=True, omit_defaults=True):
    """A GPU as CUDA shows it to a process; its place in the list is the N of ``cuda:N``."""

    uuid: str
    """In NVML's form: GPU-…, or MIG-… for a MIG device."""
    pci: str = ""
    """0000:1b:00.0; empty if CUDA does not report it, and in a rank's facts if it equals NVML's for this UUID."""
    capability: tuple[Count, Count] = (0, 0)
    """Compute capability; (0, 0) if CUDA does not report it."""


class CudaView(Facts, frozen=True, omit_defaults=True):
    """What CUDA itself shows to a process with a rank's variables."""

    devices: tuple[CudaDevice, ...]
    error: Whole = 0
    """The CUresult of cuInit or of the first call after it; 0 is success."""
    words: str = ""
    """CUDA's text for that error."""
    version: Whole = 0
    """The CUDA version that the driver supports: 12040 is 12.4."""
    library: str = ""
    """The loaded libcuda.so.1, with links resolved."""
