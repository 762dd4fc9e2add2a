"""Collect where a node's GPUs and network adapters are on the PCI bus, from sysfs.

The adapter's firmware returns the state of a port, and the card's driver its speed, under the kernel's network lock: if
one of them hangs, the read does. So a child that is left behind at the deadline reads them.

Sources: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband, sysfs-class-net.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from distcheck.facts.base import Missing
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.probe import child
from distcheck.probe.child import Question
from distcheck.probe.kernel_files import contents, listed

NVIDIA, AMD = "0x10de", "0x1002"
_GPU = {NVIDIA: ("0x0300", "0x0302"), AMD: ("0x0380", "0x0302", "0x1200")}
"""The PCI classes of a vendor's GPUs: display and 3D controllers, and accelerators."""
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ACTIVE = "4:"
"""Prefix of an active port's state: IBV_PORT_ACTIVE."""
_PCI = Question(__name__, "sysfs", "a network adapter or its driver hangs")


async def places(timeout: float) -> Pci | Missing:
    """Read the PCI places in a child, for at most `timeout` seconds and one more to end it."""
    return await child.ask(_PCI, Pci, timeout)


def collect(root: Path = Path("/")) -> Pci | Missing:
    """Read the PCI places in this process. It can hang: callers use `places`."""
    root = root.resolve()
    bus = root / "sys/bus/pci/devices"
    try:
        addresses = sorted(device.name for device in bus.iterdir())
    except OSError as error:
        if not listed(root / "sys/class"):
            return Missing(reason=f"{bus}: {error.strerror}")
        addresses = []  # no PCI bus
    vendors = {address: vendor for address in addresses if (vendor := vendor_of(bus / address))}
    ours = NVIDIA if NVIDIA in vendors.values() else AMD  # as `probe.gpu.accelerator`
    fast = _infiniband(root)
    taken = {nic.place.path[-1:] for nic in fast if nic.place.path}
    return Pci(
        gpus={address: _place(root, bus / address) for address, vendor in vendors.items() if vendor == ours},
        nics=(*fast, *(nic for nic in _ethernet(root) if nic.place.path[-1:] not in taken)),
        virtual=virtual(root),
    )


def vendor_of(device: Path) -> str:
    """Return the vendor of a GPU on the PCI bus, '' for other devices and other vendors."""
    vendor = contents(device / "vendor")
    return vendor if vendor in _GPU and contents(device / "class").startswith(_GPU[vendor]) else ""


def count(root: Path, vendor: str) -> int:
    """Return the number of a vendor's GPUs on the PCI bus."""
    return sum(vendor_of(device) == vendor for device in (root / "sys/bus/pci/devices").glob("*"))


def _infiniband(root: Path) -> tuple[Nic, ...]:
    """Return the InfiniBand and RoCE devices, with their ports that are up."""
    found = []
    for name in listed(root / "sys/class/infiniband"):
        device = root / "sys/class/infiniband" / name
        ports = [device / "ports" / port for port in listed(device / "ports")]
        up = [port for port in ports if contents(port / "state").startswith(_ACTIVE)]
        layers = [contents(port / "link_layer") for port in up or ports]
        rates = [rate for port in up if (rate := _number(port / "rate")) is not None]
        found.append(
            Nic(
                name,
                _place(root, device / "device"),
                "ib",
                link_layer=layers[0] if layers else "",
                active=bool(up),
                ports=tuple(sorted(int(port.name) for port in up if port.name.isdecimal())),
                usable=_may_open(root, device),
                rate_Gbps=max(rates, default=None),
            )
        )
    return tuple(found)


def _may_open(root: Path, device: Path) -> bool:
    """Return whether this process may open a device's file for libibverbs."""
    files = (root / "dev/infiniband" / name for name in listed(device / "device/infiniband_verbs"))
    return any(os.access(file, os.R_OK | os.W_OK) for file in files)


def _ethernet(root: Path) -> tuple[Nic, ...]:
    """Return the interfaces backed by a device: no bridges, veth pairs, bonds or loopback."""
    cards = root / "sys/class/net"
    found = []
    for name in listed(cards):
        if "device" not in listed(cards / name):
            continue
        speed = _number(cards / name / "speed")
        active = contents(cards / name / "carrier") == "1"
        found.append(
            Nic(
                name,
                _place(root, cards / name / "device"),
                "ethernet",
                active=active,
                rate_Gbps=speed / 1000 if active and speed is not None and speed > 0 else None,
            )
        )
    return tuple(found)


def _place(root: Path, device: Path) -> PciPlace:
    """Return a device's place on the PCI bus, empty for a device that is not on it."""
    try:
        parts = device.resolve(strict=True).relative_to(root).parts
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return PciPlace((), None)
    ours = [n for n, part in enumerate(parts) if _FUNCTION.fullmatch(part)]
    # A driver may add one level below the PCI function, as virtio does. A deeper device, such as a network card on
    # USB, is not on the PCI bus.
    if not ours or ours[-1] < len(parts) - 2:
        return PciPlace((), None)
    function = root.joinpath(*parts[: ours[-1] + 1])
    node = _number(function / "numa_node")
    return PciPlace(
        path=tuple(part for part in parts if _FUNCTION.fullmatch(part) or _ROOT_COMPLEX.fullmatch(part)),
        numa_node=None if node is None or node < 0 else int(node),
        # If the kernel does not know the node, it lists every CPU.
        cpus=contents(function / "local_cpulist") if node is not None and node >= 0 and vendor_of(function) else "",
    )


def virtual(root: Path) -> bool:
    """Return whether this is a virtual machine, by x86 CPU flags or the firmware's names."""
    first = contents(root / "proc/cpuinfo")  # the first CPUs; reading all CPUs of a large node takes milliseconds
    if re.search(r"^flags\s*:", first, re.MULTILINE):
        return re.search(r"^flags\s*:.*\bhypervisor\b", first, re.MULTILINE) is not None
    names = " ".join(contents(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    return re.search(r"QEMU|KVM|Virtual|VMware|Xen|Amazon EC2|Google Compute Engine", names) is not None


def _number(path: Path) -> float | None:
    match = re.match(r"-?\d+(\.\d+)?", contents(path))
    return float(match[0]) if match else None
