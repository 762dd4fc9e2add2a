"""What NVML reports about a node's GPUs, and which vendor's GPUs a node has.

`gpus` asks NVML in a child, which is this module run as a program. The reason of a `Missing` from here begins with
``NVML`` if NVML failed, and with ``NVML error N:`` if it returned an error; otherwise distcheck could not ask.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, Gpu, Gpus
from distcheck.probe import child, pci
from distcheck.probe.child import Question, exit_after_lifetime, say
from distcheck.probe.kernel_files import contents
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
    error_code,
    start,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PRESENCE = "presence"
_OTHERS = "others="
_NVML = Question(__name__, "NVML", "a GPU or its driver hangs")
_NVML_PRESENCE = _NVML._replace(arguments=(_PRESENCE,))


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
        or _on_pci_bus(root, pci.NVIDIA)
    ):
        return "nvidia"
    if _amd_compute_node(root) or _on_pci_bus(root, pci.AMD):
        return "amd"
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    # Path.exists raises where a folder may not be entered.
    found = any(os.access(root / f.lstrip("/") / LIBRARY, os.F_OK) for f in [*folders, "/usr/lib/wsl/lib"])
    code = error_code(answer.reason) if isinstance(answer, Missing) else None
    return "nvidia" if found and code not in {DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND} else "none"


def _on_pci_bus(root: Path, vendor: str) -> int:
    """Return the number of a vendor's GPUs on the PCI bus."""
    return sum(pci.is_gpu(device, vendor) for device in (root / "sys/bus/pci/devices").glob("*"))


def _amd_compute_node(root: Path) -> bool:
    """Return whether AMD's kernel driver lists a GPU; CPUs in its list have no SIMD units."""
    if not (root / "dev/kfd").exists():
        return False
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        fields = dict(line.split(None, 1) for line in contents(properties).splitlines() if " " in line)
        if fields.get("simd_count", "0").strip() not in {"", "0"}:
            return True
    return False


async def gpus(timeout: float, *, health: bool = True, others: int = 0) -> Gpus | Missing:
    """Ask NVML about this node in a child process, for at most `timeout` seconds.

    One more second may pass until the child is dead. Without `health` the child reports only which GPUs exist; that is
    known even if their condition cannot be read. `others` is the number of the node's processes when another process
    reads the condition for all of them. Then this process reads it only if it sees fewer GPUs than there are processes
    or GPUs on the PCI bus, because it is then restricted to its own GPUs.
    """
    question = _NVML if health else _NVML_PRESENCE
    if others:
        question = _NVML._replace(arguments=(f"{_OTHERS}{others}",))
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
    cuda = ask(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
    return Gpus(
        driver=ask(nvml, lambda: text(nvml.nvmlSystemGetDriverVersion())),
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
        handle = ask(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, gpu.index))
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
    handle = ask(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if isinstance(handle, Missing):
        # A GPU that a cgroup hides from this process is not lost but another job's; CUDA does not show it.
        lost = "" if error_code(handle.reason) == NO_PERMISSION else handle.reason
        return Gpu(index, handle, handle, handle, handle, handle, handle, lost=lost)
    uuid = ask(nvml, lambda: text(nvml.nvmlDeviceGetUUID(handle)))
    pci = ask(nvml, lambda: _address(nvml.nvmlDeviceGetPciInfo(handle)))
    name = ask(nvml, lambda: text(nvml.nvmlDeviceGetName(handle)))
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
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
            return int(memory.total), int(memory.used)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.used)


def _mig_uuids(nvml: Nvml, handle: object) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG devices in NVML's order; slots may be empty."""
    slots = ask(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)))

    def uuid(slot: int) -> str:
        return text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)))

    answers = (ask(nvml, partial(uuid, slot)) for slot in range(0 if isinstance(slots, Missing) else slots))
    return tuple(answer for answer in answers if isinstance(answer, str))


def _address(pci: Any) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def main() -> None:
    """Print NVML's answers as lines of JSON: which GPUs exist, then also their condition."""
    exit_after_lifetime()
    found = collect()
    say(found)
    if isinstance(found, Gpus) and _is_ours_to_examine(found, sys.argv):
        say(examine(found))


def _is_ours_to_examine(found: Gpus, arguments: Sequence[str], root: Path = Path("/")) -> bool:
    others = next((int(word.removeprefix(_OTHERS)) for word in arguments if word.startswith(_OTHERS)), None)
    if _PRESENCE in arguments or others is None:
        return _PRESENCE not in arguments
    # NVML also counts GPUs that a cgroup hides from this process.
    ours = sum(1 for gpu in found.devices if gpu.lost or isinstance(gpu.uuid, str))
    return ours < others or ours < _on_pci_bus(root, pci.NVIDIA)


if __name__ == "__main__":
    main()
