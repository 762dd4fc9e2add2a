"""Collect a node's RDMA adapters from sysfs, and whether this process could use them.

Reading a port asks the adapter's firmware, which can hang. So a child that is killed at the deadline reads them; it
reports after each adapter, and the adapters read until then count. Nothing is changed, and no root is needed.

Sources: linux/Documentation/ABI/stable/sysfs-class-infiniband; linux/drivers/infiniband/core/sysfs.c for the texts of
state, phys_state, rate, gids and pkeys; drivers/infiniband/hw/mlx5/counters.c for hw_counters.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import OWN_LINKS, Counters, Gid, Hca, HcaPort, Infiniband
from distcheck.probe import pci
from distcheck.probe.child import Question, ask
from distcheck.probe.kernel_files import contents, integer, link_name, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLASS = "sys/class/infiniband"
_ROOT = Path("/")
_NO_GID = re.compile(r"[0:]*|fe80:[0:]*")
"""An empty entry: without an interface identifier."""
_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X ?(\w*)\))?")
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)  # fmt: skip
_HW_COUNTERS = (
    "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "req_transport_retries_exceeded",
    "out_of_sequence", "rp_cnp_handled", "np_ecn_marked_roce_packets",
)  # fmt: skip
_PEER_MEMORY = {
    "nvidia_peermem": "sys/module/nvidia_peermem/version",
    "nv_mem": "sys/kernel/mm/memory_peers/nv_mem/version",
    "nv_mem_nc": "sys/kernel/mm/memory_peers/nv_mem_nc/version",
}
"""What NCCL looks for (src/transport/net_ib/gdr.cc)."""
_FACTS = Question(__name__, "the RDMA adapters", "an adapter or its driver hangs", call="collecting")
_AGAIN = _FACTS._replace(subject="the RDMA adapters' counters", call="collect_counters")


async def infiniband(timeout: float) -> Infiniband | Missing:
    """Read the adapters in a child, for at most `timeout` seconds and one more to end it.

    Without adapters there is no child.
    """
    if not listed(_ROOT / CLASS):
        return Infiniband()
    return await ask(_FACTS, Infiniband, timeout, in_part=lambda found, reason: replace(found, unread=reason))


async def counters(timeout: float) -> Counters | Missing:
    """Read the counters of all ports again in a child."""
    return await ask(_AGAIN, Counters, timeout)


def collect(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Infiniband:
    """Read the adapters in this process. It can hang: callers use `infiniband`."""
    *_, last = collecting(root, environ)
    return last


def collecting(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> Iterator[Infiniband]:
    """Yield the facts, more complete each time: first those that no adapter can delay."""
    found = Infiniband(
        libibverbs=_not_loadable("libibverbs.so.1"),
        peer_memory=tuple(name for name, path in _PEER_MEMORY.items() if (root / path).exists()),
        open_driver=_open_driver(root),
        iommu_groups=_iommu_groups(root),
        virtual=pci.virtual(root),
    )
    yield found
    names = listed(root / CLASS)
    for number, name in enumerate(names, 1):
        unread = f"the adapters after {name} were not read" if number < len(names) else ""
        found = replace(found, hcas=(*found.hcas, _hca(root, name)), unread=unread)
        yield found
    if not found.libibverbs and any(hca.abi is not None for hca in found.hcas):
        found = replace(found, offered=offered())
        yield found
    if any(port.link_layer not in OWN_LINKS for hca in found.hcas for port in hca.ports):
        yield replace(found, net_plugin=_net_plugin(environ))


def collect_counters(root: Path = _ROOT) -> Counters:
    """Read the counters of all ports in this process."""
    ports = [(name, port) for name in listed(root / CLASS) for port in _ports(root / CLASS / name)]
    return Counters({f"{name}:{port.name}": _counters(port) for name, port in ports})


def _hca(root: Path, name: str) -> Hca:
    device = root / CLASS / name
    files = listed(device / "device/infiniband_verbs") or _verbs_of(root, name)
    usable, why = _openable(root / "dev/infiniband" / files[0]) if files else ("unknown", "")
    return Hca(
        name=name,
        ports=tuple(_port(folder) for folder in _ports(device)),
        driver=link_name(device / "device/driver"),
        board=contents(device / "board_id"),
        node_guid=contents(device / "node_guid"),
        device_file=usable,
        file_name=files[0] if files else "",
        denied=why,
        abi=integer(root / "sys/class/infiniband_verbs" / files[0] / "abi_version") if files else None,
    )


def _verbs_of(root: Path, name: str) -> list[str]:
    """Return the files of a device without a PCI function, such as rxe, by sysfs's list of all of them."""
    verbs = root / "sys/class/infiniband_verbs"
    return [file for file in listed(verbs) if contents(verbs / file / "ibdev") == name]


def _openable(file: Path) -> tuple[Literal["usable", "denied", "absent", "unknown"], str]:
    """Return whether a device file can be opened; only opening it asks the container's device cgroup."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return "absent", ""
    except PermissionError as error:
        return "denied", error.strerror or ""
    except OSError as error:
        return ("denied" if error.errno in {errno.ENXIO, errno.ENODEV} else "unknown"), error.strerror or ""
    return "usable", ""


def _ports(device: Path) -> list[Path]:
    return [device / "ports" / port for port in listed(device / "ports") if port.isdecimal()]


class _Rate(NamedTuple):
    gbps: float | None
    lanes: int | None
    speed: str


def _port(folder: Path) -> HcaPort:
    rate = _rate(contents(folder / "rate"))
    gids = listed(folder / "gids")
    keys = listed(folder / "pkeys")
    return HcaPort(
        number=int(folder.name),
        link_layer=contents(folder / "link_layer"),
        state=_name(contents(folder / "state")),
        physical_state=_name(contents(folder / "phys_state")),
        rate_Gbps=rate.gbps,
        lanes=rate.lanes,
        speed=rate.speed,
        gids={int(index): gid for index in gids if index.isdecimal() and (gid := _gid(folder, index))},
        gid_slots=len(gids),
        partition_keys={int(index): key for index in keys if (key := _hex(contents(folder / "pkeys" / index)))},
        pkey_slots=len(keys),
        counters=_counters(folder),
    )


def _gid(folder: Path, index: str) -> Gid | None:
    address = contents(folder / "gids" / index)
    if _NO_GID.fullmatch(address):
        return None
    attributes = folder / "gid_attrs"
    return Gid(address, kind=contents(attributes / "types" / index), interface=contents(attributes / "ndevs" / index))


def _rate(text: str) -> _Rate:
    """Return the parts of "400 Gb/sec (4X NDR)"."""
    match = _RATE.match(text)
    if match is None:
        return _Rate(None, None, "")
    return _Rate(float(match[1]), int(match[2]) if match[2] else None, match[3] or "")


def _counters(folder: Path) -> dict[str, int]:
    """Return a port's counters that are numbers; a driver without them writes "N/A (no PMA)"."""
    paths = [*(folder / "counters" / name for name in _COUNTERS), *(folder / "hw_counters" / n for n in _HW_COUNTERS)]
    return {path.name: int(count) for path in paths if (count := contents(path)).isdecimal()}


def _name(text: str) -> str:
    """Return the name in "4: ACTIVE"."""
    return text.partition(": ")[2]


def _hex(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _not_loadable(library: str) -> str:
    """Return the error of loading a library, '' if it loads: NCCL loads it in the same way (dlopen)."""
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)[:200]
    return ""


def offered(library: str = "libibverbs.so.1") -> tuple[str, ...] | None:
    """Return the adapters for which libibverbs has a provider, as NCCL asks it for them; None if it cannot be asked.

    Source: ibv_get_device_list(3). Loading the providers may hang or crash: only a child asks.
    """
    import ctypes

    try:
        verbs = ctypes.CDLL(library)
        verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        verbs.ibv_get_device_name.restype = ctypes.c_char_p
        verbs.ibv_get_device_name.argtypes = verbs.ibv_free_device_list.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        return ()
    names = tuple(verbs.ibv_get_device_name(devices[place]).decode("utf-8", "replace") for place in range(count.value))
    verbs.ibv_free_device_list(devices)
    return names


def _net_plugin(environ: Mapping[str, str]) -> str:
    """Return the network plugin that NCCL would load here, '' if there is none.

    Source: NVIDIA/nccl, src/plugin/plugin_open.cc: NCCL_NET_PLUGIN as given, else as libnccl-net-<name>.so; without it
    libnccl-net.so. aws-ofi-nccl also installs libnccl-net-ofi.so.
    """
    given = environ.get("NCCL_NET_PLUGIN", "")
    names = [n for item in given.split(",") if item for n in (item, f"libnccl-net-{item}.so")]
    return next((name for name in names or ["libnccl-net.so"] if not _not_loadable(name)), "")


def _open_driver(root: Path) -> bool | None:
    """Return whether NVIDIA's kernel modules are the open ones: /proc/driver/nvidia/version names them so."""
    version = contents(root / "proc/driver/nvidia/version")
    return "Open Kernel Module" in version if version else None


def _iommu_groups(root: Path) -> dict[str, str]:
    """Return the IOMMU groups of PCI devices that are GPUs or network adapters.

    Source: linux/Documentation/driver-api/vfio.rst; devices between which ACS allows no direct traffic share none.
    """
    bus = root / "sys/bus/pci/devices"
    found = {}
    for address in listed(bus):
        group = link_name(bus / address / "iommu_group")
        if group and contents(bus / address / "class").startswith(("0x02", "0x0300", "0x0302")):
            found[address] = group
    return found
