"""The only gateway to CUDA's driver library: which GPUs it shows to a rank.

CUDA reads CUDA_VISIBLE_DEVICES once, when it starts, and a process that has started it may not fork any more. So a
child that has the rank's variables asks it, and is left behind at the deadline: a wedged GPU, or an MPS daemon that
does not answer, can block ``cuInit`` forever. The child creates no context on any GPU, so it uses no GPU memory, and
the compute mode does not matter.

The reason of a `Missing` from here begins with ``CUDA`` if CUDA hung or crashed and with ``libcuda.so.1`` if the
library cannot be loaded; otherwise distcheck could not ask. What CUDA itself answers is a `CudaView`, errors included.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Gpu
from distcheck.probe import child
from distcheck.probe.child import Question
from distcheck.probe.kernel_files import mapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LIBRARY = "libcuda.so.1"
_CUDA = Question(__name__, "CUDA", "a GPU, its driver or the MPS daemon hangs")
_DECIDES = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""Prefixes of the variables that can change which GPUs CUDA shows."""
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""
_WORDS = {
    3: "initialization error",
    34: "the CUDA driver library is a stub library",
    46: "all CUDA-capable devices are busy or unavailable",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
    804: "forward compatibility was attempted on non supported HW",
    999: "unknown error",
}
"""CUDA's error texts (cuda.h), for libraries that do not return them."""


async def views(environments: Sequence[Mapping[str, str]], timeout: float) -> list[CudaView | Missing]:
    """Return what CUDA shows in each of these environments, the ranks' own.

    Equal environments share one child. All children run at the same time, for at most `timeout` seconds and one more
    until they are dead.
    """
    import asyncio

    alike: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}
    for environ in environments:
        alike.setdefault(_deciding(environ), environ)
    asked = (child.ask(_CUDA, CudaView, timeout, environ=environ) for environ in alike.values())
    answers: dict[frozenset[tuple[str, str]], CudaView | Missing] = dict(
        zip(alike, await asyncio.gather(*asked), strict=True)
    )
    return [answers[_deciding(environ)] for environ in environments]


def _deciding(environ: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environ.items() if name.startswith(_DECIDES))


def as_nvml_names(view: CudaView, gpus: tuple[Gpu, ...], predicted: tuple[str, ...] = ()) -> CudaView:
    """Return the view with its devices named as NVML and `visible` name them.

    CUDA's UUIDs do not have a kind, so each is looked up as a GPU's and as a MIG device's, then by its PCI address;
    unknown devices keep their own. A driver before 470 gives a MIG device the UUID of its GPU: then `predicted` names
    it. Addresses that NVML reports as well are left out: every rank would repeat them.
    """
    from distcheck.facts.gpu import usable_name

    names = {name: name for gpu in gpus for name in (usable_name(gpu), *gpu.mig_uuids) if name}
    places = {gpu.pci: usable_name(gpu) for gpu in gpus if isinstance(gpu.pci, str) and usable_name(gpu)}
    parents = {uuid: usable_name(gpu) for gpu in gpus for uuid in gpu.mig_uuids}
    divided = set(parents.values())

    def name(device: CudaDevice) -> str:
        mig = "MIG-" + device.uuid.partition("-")[2]
        found = names.get(device.uuid) or names.get(mig) or places.get(device.pci) or device.uuid
        if found in divided:
            return next((uuid for uuid in predicted if parents.get(uuid) == found), found)
        return found

    known = {usable_name(gpu): gpu for gpu in gpus}

    def named(device: CudaDevice) -> CudaDevice:
        uuid = name(device)
        gpu = known.get(uuid)
        pci = "" if gpu is not None and gpu.pci == device.pci else device.pci
        return CudaDevice(uuid, pci, device.capability)

    return msgspec.structs.replace(view, devices=tuple(named(device) for device in view.devices))


def collect() -> CudaView | Missing:
    """Ask CUDA in this process. It can hang, and no fork may follow: callers use `views`."""
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Missing(reason=f"{_LIBRARY} cannot be loaded: {str(error).removeprefix(f'{_LIBRARY}: ')}")
    try:
        return _ask(cuda)
    except AttributeError as error:  # a library without a function that every CUDA has
        return Missing(reason=f"{_LIBRARY} cannot be used: {error}")


def _ask(cuda: ctypes.CDLL) -> CudaView:
    library = next((path for path in mapped() if Path(path).name.startswith("libcuda.so")), "")
    version, count = ctypes.c_int(), ctypes.c_int()
    known = version.value if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    known = version.value if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 else known
    if error:
        return CudaView((), error=error, words=_words(cuda, error), version=known, library=library)
    devices = tuple(_device(cuda, ordinal) for ordinal in range(count.value))
    return CudaView(devices, version=known, library=library)


def _device(cuda: ctypes.CDLL, ordinal: int) -> CudaDevice:
    handle = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(handle), ordinal):
        return CudaDevice("", "")
    pci = ctypes.create_string_buffer(32)
    at = "" if cuda.cuDeviceGetPCIBusId(pci, len(pci), handle) else pci.value.decode("ascii", "replace")
    return CudaDevice(
        uuid=_uuid(cuda, handle),
        pci=pci_address(at),
        capability=(_attribute(cuda, _MAJOR, handle), _attribute(cuda, _MINOR, handle)),
    )


def _uuid(cuda: ctypes.CDLL, handle: ctypes.c_int) -> str:
    """Return a device's UUID in GPU form; the newer call returns a MIG device's own UUID."""
    for call in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):  # the first exists from CUDA 11.4 on
        raw = (ctypes.c_ubyte * 16)()
        ask: Any = getattr(cuda, call, None)
        if ask is not None and ask(raw, handle) == 0:
            digits = bytes(raw).hex()
            return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return ""


def _attribute(cuda: ctypes.CDLL, attribute: int, handle: ctypes.c_int) -> int:
    value = ctypes.c_int()
    return 0 if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) else value.value


def _words(cuda: ctypes.CDLL, error: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorString(error, ctypes.byref(text)) == 0 and text.value:
        return text.value.decode("utf-8", "replace")
    return _WORDS.get(error, "unrecognized error code")


def pci_address(text: str) -> str:
    """Return a PCI address as sysfs writes it, 0000:1b:00.0; '' if the text is no address."""
    try:
        domain, bus, rest = text.split(":")
        device, _, function = rest.partition(".")
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function or '0', 16):x}"
    except ValueError:
        return ""
