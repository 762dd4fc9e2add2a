"""This process's torch: its version, the loaded NCCL, and the available backends."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from distcheck.collectives.postponed import without_meta_kernels
from distcheck.collectives.silence import without_warnings

# torch imports NumPy if installed, whose OpenBLAS would start threads; the ranks are forked from this process.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
with without_warnings(), without_meta_kernels():
    import torch
    import torch.distributed as dist

from distcheck.collectives.plan import Software, gpu_uuid
from distcheck.facts.libraries import dotted
from distcheck.probe.kernel_files import mapped

_BY_NAME = "_ensure_backend_registered"
"""What torch has since 2.14, which loads a backend's entry point when it is named."""
_SPELT = {"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI", "ucc": "UCC", "xccl": "XCCL"}


def software(device: torch.device) -> Software:
    """Return the versions in use and the name of the rank's device."""
    known = Software(torch=str(torch.__version__), nccl=nccl_version(), device=device.type)
    if device.type != "cuda":
        return known
    told = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    gpu = unique_id(told) if torch.version.hip else gpu_uuid(told)
    return msgspec.structs.replace(known, device=torch.cuda.get_device_name(device), gpu=gpu)


def unique_id(told: str) -> str | None:
    """Return an AMD GPU's unique id in the form of its facts from torch's UUID, None for other text.

    HIP gives the id's sixteen digits as characters, which torch shows as if they were the bytes of a UUID.

    Source: ROCm/clr hipamd/src/hip_device.cpp (hipDeviceGetUuid); torch/csrc/cuda/Module.cpp (uuid_to_string).
    """
    digits = told.removeprefix("GPU-").replace("-", "").lower()
    with suppress(ValueError):
        digits = bytes.fromhex(digits).decode("ascii") if len(digits) == 32 else digits
    return f"GPU-{digits}" if re.fullmatch("[0-9a-f]{16}", digits) else None


def nccl_version(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the version of the NCCL library that torch calls in this process, empty without one.

    `torch.cuda.nccl.version()` is the version that torch was compiled with. LD_PRELOAD or another installed wheel may
    load a different one, so the library itself is queried. Torch 2.11 and 2.13 load the one of their wheel besides one
    in LD_PRELOAD (_preload_cuda_deps in torch/__init__.py), but the linker looks for functions in that first.
    """
    try:
        loaded = {path for path in mapped(maps) if "libnccl.so" in path or "librccl.so" in path}
        for library in (None, *sorted(loaded)):  # None: what the whole process sees, as of LD_PRELOAD
            number = ctypes.c_int()
            ask = getattr(ctypes.CDLL(library), "ncclGetVersion", None)
            if ask is not None and ask(ctypes.byref(number)) == 0:
                return dotted(number.value)
    except OSError:
        return ""
    return ""


def implementation(device: torch.device) -> str:
    """Return the class behind the process group's backend, such as ProcessGroupNCCL2; empty if torch does not tell.

    Source: torch/distributed/distributed_c10d.py of 2.15, _register_builtin_nccl_backend: TORCH_DIST_USE_NCCL2 decides
    what nccl is.
    """
    try:
        return type(dist.distributed_c10d._get_default_group()._get_backend(device)).__name__  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return ""


def lack_of(backend: str, name: str = "") -> str:
    """Return why this torch cannot run a backend, empty if it can; `name` if init_process_group gets another one."""
    has = backends()
    others = f"it has {' and '.join(has)}" if has else "it has no backend at all"
    wanted = [part.rpartition(":")[2] for part in (name or backend).split(",")]
    for each in (part for part in wanted if part not in has):
        if each.startswith("nccl") and "nccl" not in has and dist.is_available() and dist.is_nccl_available():
            return f"this torch {torch.__version__} has NCCL but finds no GPU; without one {others}"
        shown = _SPELT.get(each, f"backend {each}")
        return f"this torch {torch.__version__} has no {shown}; {others}"
    if not device_type(backend, name):
        return f"{backend} moves the data of devices that torch {torch.__version__} does not find here; {others}"
    return ""


def backends() -> tuple[str, ...]:
    """Return the backends that work here, those of plugins last; NCCL only if torch finds a GPU.

    Plugins register theirs when torch is imported (entry points torch.backends), or since 2.14 when init_process_group
    names one (entry points torch.distributed.backends).
    """
    if not dist.is_available():
        return ()
    works = {
        "nccl": dist.is_nccl_available() and torch.cuda.device_count() > 0,
        "gloo": dist.is_gloo_available(),
        "mpi": dist.is_mpi_available(),
        "ucc": dist.distributed_c10d.is_ucc_available(),
        "xccl": getattr(dist.distributed_c10d, "is_xccl_available", bool)(),
    }
    named = entry_points(group="torch.distributed.backends") if hasattr(dist.Backend, _BY_NAME) else ()
    own = {each.lower() for each in (*dist.Backend._plugins, *(e.name for e in named))} - works.keys() - {"fake"}  # noqa: SLF001
    own = {each for each in own if works["nccl"] or not each.startswith("nccl")}
    return (*(each for each, can in works.items() if can), *sorted(own))


def device_type(backend: str, name: str = "") -> str:
    """Return the type of the devices whose data a backend moves here: of GPUs before CPUs; empty if there are none."""
    if backend in {"nccl", "gloo", "mpi"}:
        return "cuda" if backend == "nccl" else "cpu"
    types = dist.distributed_c10d.BackendConfig(dist.Backend(name or backend)).get_device_backend_map()
    modules = {each: getattr(torch, each, None) for each in types if each != "cpu"}
    there = [each for each, module in modules.items() if module is not None and module.is_available()]
    return (*there, *{"cpu"}.intersection(types), "")[0]
