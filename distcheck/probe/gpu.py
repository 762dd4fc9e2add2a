"""What NVML or amdgpu reports about a node's GPUs, and which vendor's GPUs a node has.

`gpus` asks in a child. The reason of a `Missing` from here begins with
``NVML`` if NVML failed, and with ``NVML error N:`` if it returned an error; otherwise distcheck could not ask.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, Gpu, Gpus
from distcheck.probe import child, pci
from distcheck.probe.child import Question
from distcheck.probe.kernel_files import contents, listed
from distcheck.probe.nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIBRARY,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Nvml,
    ask,
    asked,
    error_code,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NVML = Question(__name__, "NVML", "a GPU or its driver hangs")
_AMDGPU = Question("distcheck.probe.amdgpu_health", "amdgpu", "a GPU or its driver hangs")
KFD = Path("sys/class/kfd/kfd")
"""The folder of AMD's kernel driver for compute; absent where that is not loaded."""


def accelerator(
    root: Path = Path("/"), environ: Mapping[str, str] = os.environ, answer: Gpus | Missing | None = None
) -> Literal["nvidia", "amd", "none"]:
    """Return the vendor of a node's GPUs, from /dev, /proc, the PCI bus or NVML's library.

    Container runtimes bring the library to nodes without GPUs too (``singularity --nv`` where the driver's libraries
    are installed). So if the library is the only sign, NVML's `answer` decides as soon as there is one.
    """
    if (
        (root / "dev/nvidiactl").exists()
        or (root / "proc/driver/nvidia/version").exists()
        or pci.count(root, pci.NVIDIA)
    ):
        return "nvidia"
    if _amd_compute_node(root) or pci.count(root, pci.AMD):
        return "amd"
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    # Path.exists raises where a folder may not be entered.
    found = any(os.access(root / f.lstrip("/") / LIBRARY, os.F_OK) for f in [*folders, "/usr/lib/wsl/lib"])
    code = error_code(answer.reason) if isinstance(answer, Missing) else None
    return "nvidia" if found and code not in {DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND} else "none"


def _amd_compute_node(root: Path) -> bool:
    """Return whether AMD's kernel driver lists a GPU; CPUs in its list have no SIMD units.

    Where the driver is not loaded, this is one look-up that fails.
    """
    nodes = root / KFD / "topology/nodes"
    texts = (contents(nodes / node / "properties") for node in listed(nodes))
    return any(re.search(r"^simd_count [1-9]", text, re.MULTILINE) for text in texts)


async def gpus(timeout: float, vendor: str = "nvidia", *, health: bool = True, others: int = 0) -> Gpus | Missing:
    """Ask the driver of a vendor's GPUs about this node in a child process, for at most `timeout` seconds.

    One more second may pass until the child is dead. Without `health` the child reports only which GPUs exist; that is
    known even if their condition cannot be read. `others` is the number of the node's processes when another process
    reads the condition for all of them. Then this process reads it only if it sees fewer GPUs than there are processes
    or GPUs on the PCI bus, because it is then restricted to its own GPUs.
    """
    question = _AMDGPU if vendor == "amd" else _NVML
    if health:
        question = question._replace(call="examined", arguments=(str(others),))
    return await child.ask(
        question, Gpus, timeout, in_part=lambda found, reason: msgspec.structs.replace(found, unread=reason)
    )


def collect() -> Gpus | Missing:
    """Ask NVML in this process which GPUs exist. It can hang: callers use `gpus`."""
    nvml = start()
    if isinstance(nvml, Missing):
        return nvml
    count = ask(nvml, nvml.nvmlDeviceGetCount)
    if isinstance(count, Missing):
        return count
    cuda = asked(nvml, "nvmlSystemGetCudaDriverVersion")
    return Gpus(
        driver=asked(nvml, "nvmlSystemGetDriverVersion"),
        cuda_driver=cuda if isinstance(cuda, Missing) else f"{cuda // 1000}.{cuda % 1000 // 10}",
        devices=tuple(_gpu(nvml, index) for index in range(count)),
        denied=denied(),
    )


def denied(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the device files of GPUs that this process's user may not open."""
    files = sorted((root / "dev").glob("nvidia[0-9]*"))
    return tuple(f"/dev/{file.name}" for file in files if not os.access(file, os.R_OK | os.W_OK))


def examine(found: Gpus) -> Gpus:
    """Add the condition of the GPUs that `collect` found, and facts about several of them."""
    from distcheck.probe import gpu_health

    nvml = start()  # NVML counts its starts
    if isinstance(nvml, Missing):
        return msgspec.structs.replace(found, unread=nvml.reason)
    devices, handles = [], {}
    for gpu in found.devices:
        handle = asked(nvml, "nvmlDeviceGetHandleByIndex", gpu.index)
        if gpu.lost or isinstance(handle, Missing):
            devices.append(gpu)
            continue
        health = gpu_health.read(nvml, handle)
        lost = gpu_health.lost(health)
        devices.append(msgspec.structs.replace(gpu, health=health, lost=lost))
        if not lost:
            handles[gpu.index] = handle
    fabrics = [gpu.health.fabric for gpu in devices if gpu.health is not None]
    shared = any(isinstance(fabric, Fabric) and fabric.cluster for fabric in fabrics)
    return msgspec.structs.replace(
        found,
        devices=tuple(devices),
        peer_access=gpu_health.peer_access(nvml, handles),
        confidential_compute=gpu_health.confidential_compute(nvml),
        mps_daemon=gpu_health.mps_daemon(),
        imex_channel=gpu_health.imex_channel() if shared else None,
    )


def _gpu(nvml: Nvml, index: int) -> Gpu:
    handle = asked(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, Missing):
        # A GPU that a cgroup hides from this process is not lost but another job's; CUDA does not show it.
        lost = "" if error_code(handle.reason) == NO_PERMISSION else handle.reason
        return Gpu(index, handle, handle, handle, handle, handle, handle, lost=lost)
    uuid = asked(nvml, "nvmlDeviceGetUUID", handle)
    pci = ask(nvml, lambda: _address(nvml.nvmlDeviceGetPciInfo(handle)))
    name = asked(nvml, "nvmlDeviceGetName", handle)
    memory = ask(nvml, lambda: _memory(nvml, handle))
    mig = ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    if isinstance(mig, Missing) and error_code(mig.reason) in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}:
        mig = False  # the GPU or the driver does not support MIG
    answers = (uuid, pci, name, memory, mig)
    failures = (a.reason for a in answers if isinstance(a, Missing))
    return Gpu(
        index,
        uuid,
        pci,
        name,
        memory_bytes=memory if isinstance(memory, Missing) else memory[0],
        memory_used_bytes=memory if isinstance(memory, Missing) else memory[1],
        mig=mig,
        mig_uuids=_mig_uuids(nvml, handle) if mig is True else (),
        lost=next((reason for reason in failures if error_code(reason) == GPU_IS_LOST), ""),
    )


def _memory(nvml: Nvml, handle: object) -> tuple[int, int]:
    """Return total and used bytes, used without the driver's reserve if NVML separates it."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.used)


def _mig_uuids(nvml: Nvml, handle: object) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG devices in NVML's order; slots may be empty."""
    slots = asked(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle)

    def uuid(slot: int) -> str:
        return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)))

    answers = (ask(nvml, partial(uuid, slot)) for slot in range(0 if isinstance(slots, Missing) else slots))
    return tuple(answer for answer in answers if isinstance(answer, str))


def _address(pci: Any) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def examined(others: str) -> Iterator[Gpus | Missing]:
    """Yield which GPUs exist, then also their condition; see `gpus`."""
    found = collect()
    yield found
    if isinstance(found, Gpus) and _is_ours_to_examine(found, int(others)):
        yield examine(found)


def _is_ours_to_examine(found: Gpus, others: int, root: Path = Path("/")) -> bool:
    # NVML also counts GPUs that a cgroup hides from this process.
    ours = sum(1 for gpu in found.devices if gpu.lost or isinstance(gpu.uuid, str))
    return not others or ours < others or ours < pci.count(root, pci.NVIDIA)
