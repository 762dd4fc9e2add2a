"""The libraries behind torch's NCCL backend, as the dynamic linker finds them for a process."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Facts

FoundBy = Literal["", "LD_PRELOAD", "LD_LIBRARY_PATH", "torch", "system"]


class NcclPlugin(Facts, frozen=True, omit_defaults=True):
    """A plugin that NCCL would load, opened as NCCL opens it."""

    kind: Literal["net", "tuner", "profiler"]
    name: str
    """The name with which it was found: libnccl-net.so, /opt/plugin/libnccl-net.so."""
    path: str = ""
    """Its file, with links resolved."""
    interfaces: tuple[str, ...] = ()
    """The versioned symbols that it exports: ncclNetPlugin_v8."""
    error: str = ""
    """The linker's error if the file exists and could not be loaded."""


class Libraries(Facts, frozen=True, omit_defaults=True):
    """The NCCL that torch loads, NCCL's plugins, and the GPU architectures in torch's build."""

    nccl: str = ""
    """The file that torch's libtorch_cuda.so gets as libnccl.so.2, or libtorch_hip.so as librccl.so.1, links resolved;
    empty if it is part of torch."""
    version: str = ""
    """What ncclGetVersion of that file returns: 2.27.3."""
    found_by: FoundBy = ""
    """What led the linker to that file; torch: the folders that are recorded in libtorch_cuda.so."""
    own: str = ""
    """The file in the folders that are recorded in libtorch_cuda.so; empty if there is none."""
    own_version: str = ""
    """What ncclGetVersion of `own` returns, if it is another file."""
    lacks: tuple[str, ...] = ()
    """Functions that libtorch_cuda.so calls and the loaded file does not have."""
    error: str = ""
    """The linker's error if no NCCL could be loaded."""
    wheels: tuple[str, ...] = ()
    """NCCL's distributions beside torch: nvidia-nccl-cu12 2.27.3. All unpack to the same file."""
    plugins: tuple[NcclPlugin, ...] = ()
    architectures: tuple[str, ...] = ()
    """Of torch's own GPU code: sm_90, and compute_90 for code that the driver can compile; empty if unknown."""
    machine: str = ""
    """uname's machine: x86_64, aarch64."""


def dotted(code: int) -> str:
    """Return NCCL's version code as text: 22703 is 2.27.3; before 2.9, 2804 is 2.8.4 (nccl.h)."""
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
