"""A node's AMD GPUs as the kernel shows them: KFD's topology, /dev, and the PCI bus.

HIP numbers GPUs as KFD lists them; DRM's card numbers are no GPU numbers. A file of a GPU that hangs or resets may not
answer, so only programs that run in a child call this, as with NVML. The reason of a `Missing` from here begins with
``amdgpu`` if the driver refused; otherwise distcheck could not ask.

Sources: torvalds/linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c; ROCm/ROCR-Runtime libhsakmt/src/topology.c, which
leaves out a GPU whose gpu_id or render node a device cgroup denies, at open(2); the topologies that
ROCm/k8s-device-plugin recorded (testdata).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.probe import pci
from distcheck.probe.gpu import KFD
from distcheck.probe.kernel_files import contents, integer, link_name, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BUS = Path("sys/bus/pci/devices")
_UNSEEN = {errno.EPERM, errno.ENOENT}
"""Errors with which HIP leaves out a GPU in silence; with EACCES it shows none."""
_SYSTEM_MEMORY = 0
"""KFD's heap type of memory that is not the GPU's."""
_NAMES = {
    0x738C: "MI100", 0x740F: "MI210", 0x740C: "MI250", 0x7408: "MI250X",
    0x74A0: "MI300A", 0x74A1: "MI300X", 0x74B5: "MI300X VF", 0x74A2: "MI308X",
    0x74A5: "MI325X", 0x75A0: "MI350X", 0x75A3: "MI355X",
}  # fmt: skip
"""PCI device ids of AMD's Instinct GPUs: KFD's own name is ``ip discovery``, and product_name is empty on many boards.

Source: https://github.com/ray-project/ray/blob/master/python/ray/_private/accelerators/amd_gpu.py"""


class Node(NamedTuple):
    """A GPU, or a partition of one, in KFD's list."""

    ordinal: int
    folder: Path
    properties: dict[str, int]
    render: str
    """Its device file below /dev: dri/renderD128."""
    pci: str
    partition: int

    @property
    def number(self) -> int:
        """Return KFD's number of the node, by which links name it."""
        return int(self.folder.name)

    def device(self, root: Path) -> Path:
        """Return its folder on the PCI bus, which is DRM's device folder too."""
        return root / _BUS / self.pci


def collect(root: Path = Path("/")) -> Gpus | Missing:
    """Return which AMD GPUs exist, in HIP's order. It can hang: callers ask in a child."""
    if not (root / "sys/module/amdgpu").exists() and not (root / KFD).exists():
        instinct = next((name for address in listed(root / _BUS) if (name := _instinct(root / _BUS / address))), "")
        return Missing(reason=f"amdgpu: the kernel module is not loaded{f' for {instinct}' * bool(instinct)}")
    there, nodes = list(_listed(root)), nodes_of(root)
    cards = Counter(node.pci for node in nodes)
    devices = [_gpu(root, node, partitioned=cards[node.pci] > 1 or _is_part(node.device(root))) for node in nodes]
    if len(nodes) == len(there):
        gone = enumerate(_undriven(root, nodes), start=len(nodes))
        devices += (_lost(index, address, _instinct(root / _BUS / address), why) for index, (address, why) in gone)
    release = contents(root / "proc/sys/kernel/osrelease")
    return Gpus(
        driver=contents(root / "sys/module/amdgpu/version") or f"of Linux {release}",
        cuda_driver=Missing(reason="not a GPU of NVIDIA"),
        devices=tuple(devices),
        unopened=dict(_unopened(root, [node.render for node in nodes] or [render for _, _, render in there]))
        if (root / KFD).exists()
        else {},
    )


def nodes_of(root: Path) -> list[Node]:
    """Return the GPUs in KFD's list that HIP shows to this process, others may be another job's."""
    shown = [(folder, render) for folder, hidden, render in _listed(root) if not hidden]
    properties = [values(folder / "properties") for folder, _ in shown]
    return [
        Node(ordinal, folder, own, render, *_address(root, own))
        for ordinal, ((folder, render), own) in enumerate(zip(shown, properties, strict=True))
    ]


def values(file: Path) -> dict[str, int]:
    """Return the lines ``name number`` of a properties file; ids are unsigned 64-bit numbers."""
    pairs = (line.split() for line in contents(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _listed(root: Path) -> Iterator[tuple[Path, bool, str]]:
    """Yield KFD's GPUs, whether HIP leaves each out without a word, and its device file below /dev.

    HIP leaves out those that a device cgroup denies and those without a device file. KFD's list has the CPUs too, with
    the id 0.
    """
    for name in listed(root / KFD / "topology/nodes"):
        folder = root / KFD / "topology/nodes" / name
        denied = _refusal(folder / "gpu_id", os.O_RDONLY)
        if denied or contents(folder / "gpu_id") not in {"", "0"}:
            render = f"dri/renderD{values(folder / 'properties').get('drm_render_minor', 0)}"
            yield folder, bool(denied) or _refusal(root / "dev" / render, os.O_RDWR) in _UNSEEN, render


def _address(root: Path, properties: dict[str, int]) -> tuple[str, int]:
    """Return a GPU's PCI address and the number of its partition.

    The partition is in the highest bits of location_id, on older kernels in the place of the function.
    """
    place = properties.get("location_id", 0)
    device = f"{properties.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
    function = place & 7
    if function and not (root / _BUS / f"{device}.{function}").exists():
        return f"{device}.0", function
    return f"{device}.{function}", place >> 28


def _is_part(device: Path) -> bool:
    """Return whether a card's GPUs are partitions of it; a device cgroup may show a process one of them."""
    return contents(device / "current_compute_partition") not in {"", "SPX"}


def _gpu(root: Path, node: Node, *, partitioned: bool) -> Gpu:
    own, device = node.properties.get("unique_id", 0), node.device(root)
    kind = node.properties.get("device_id", 0)
    name = _NAMES.get(kind)
    banks = [bank for bank in (node.folder / "mem_banks").glob("*") if _heap(bank) != _SYSTEM_MEMORY]
    uuid: str | Missing = f"GPU-{own:016x}" if own else Missing(reason="amdgpu reports no unique id")
    if partitioned:
        uuid = f"{uuid if isinstance(uuid, str) else f'PCI-{node.pci}'}/{node.partition}"
        used = [integer(bank / "used_memory") for bank in banks]
    else:
        used = [integer(device / "mem_info_vram_used")]
    taken = [bytes_ for bytes_ in used if bytes_ is not None]
    return Gpu(
        index=node.ordinal,
        uuid=uuid,
        pci=node.pci,
        name=f"AMD Instinct {name}" if name else contents(device / "product_name") or f"AMD GPU {kind:#06x}",
        memory_bytes=sum(values(bank / "properties").get("size_in_bytes", 0) for bank in banks),
        memory_used_bytes=sum(taken) if taken else Missing(reason="amdgpu does not report it"),
        mig=False,
    )


def _heap(bank: Path) -> int:
    return values(bank / "properties").get("heap_type", _SYSTEM_MEMORY)


def _lost(index: int, address: str, name: str, why: str) -> Gpu:
    lost = Missing(reason=f"amdgpu: {why}")
    return Gpu(index, lost, address, name or lost, lost, lost, mig=False, lost=f"amdgpu: {why}")


def _instinct(device: Path) -> str:
    """Return the model of a card for compute, '' for other devices."""
    kind = contents(device / "device") if contents(device / "vendor") == pci.AMD else ""
    name = _NAMES.get(int(kind, 16)) if re.fullmatch(r"0x[0-9a-f]{4}", kind) else None
    return f"AMD Instinct {name}" if name else ""


def _undriven(root: Path, nodes: Iterable[Node]) -> Iterator[tuple[str, str]]:
    """Yield GPUs on the PCI bus, of a model that KFD lists or for compute, that amdgpu or no driver has, and why.

    One that another driver has, such as vfio-pci, belongs to a virtual machine.
    """
    bus = root / _BUS
    driven = {node.pci for node in nodes}
    models = {contents(bus / address / "device") for address in driven} - {""}
    started = "the driver did not start it" if (root / KFD).exists() else "the driver runs without KFD, which HIP needs"
    for address in listed(bus):
        device = bus / address
        if address in driven or pci.vendor_of(device) != pci.AMD:
            continue
        driver, known = link_name(device / "driver"), contents(device / "device") in models or _instinct(device)
        if known and driver in {"", "amdgpu"}:
            yield address, started if driver else "no driver is bound to it"


def _unopened(root: Path, renders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the device files that a HIP process needs and this one may not open, each with the reason.

    A device cgroup denies at open(2), where access(2) says yes.
    """
    for name in ("kfd", *renders):
        file = root / "dev" / name
        if number := _refusal(file, os.O_RDWR):
            yield f"/dev/{name}", os.strerror(number) + _owner(file)


def _refusal(file: Path, flags: int) -> int:
    """Return the error with which a file cannot be opened, 0 if it can."""
    try:
        os.close(os.open(file, flags | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _owner(file: Path) -> str:
    """Return a file's mode and group, which decide about access: , mode 660, group 109 (render)."""
    import grp

    try:
        found = file.stat()
    except OSError:
        return ""
    name = ""
    with suppress(KeyError):  # a container need not have the host's groups
        name = f" ({grp.getgrgid(found.st_gid).gr_name})"
    return f", mode {stat.S_IMODE(found.st_mode):o}, group {found.st_gid}{name}"
