"""The condition of AMD GPUs, from the files of their driver.

Each value is a file of its own, so that what a card, a virtual function or an old kernel lacks costs that value alone.

Sources: https://docs.kernel.org/gpu/amdgpu/thermal.html, https://docs.kernel.org/gpu/amdgpu/ras.html,
https://docs.kernel.org/gpu/amdgpu/driver-misc.html; torvalds/linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import (
    HARDWARE_THERMAL,
    NOT_SUPPORTED,
    SOFTWARE_THERMAL,
    Amd,
    Ecc,
    Gpu,
    GpuClocks,
    GpuHealth,
    GpuLoad,
    GpuLoads,
    GpuProcess,
    Gpus,
    PcieLink,
    XgmiPeer,
)
from distcheck.probe import amdgpu_metrics, pci
from distcheck.probe.amdgpu import collect, nodes_of, values
from distcheck.probe.amdgpu_log import BOGUS_ERRORS
from distcheck.probe.gpu import KFD
from distcheck.probe.kernel_files import contents, integer, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from distcheck.probe.amdgpu import Node

_XGMI = 11
"""KFD's type of a link (kfd_crat.h)."""
_HOP = 15
"""KFD's weight of one hop over XGMI; two partitions of a card have 13."""
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_OWN_BRIDGES = {("0x1022", "0x1500"), ("0x1022", "0x1501"), ("0x1002", "0x1478"), ("0x1002", "0x1479")}
"""PCI switches that are on the card: MI300's and older ones'."""
_BLOCK = "_err_count"
_BETWEEN_SECONDS = 0.1
"""Between two readings of the counters of throttling, which count milliseconds."""
_SLOWED = 0.1
"""Share of that time from which a GPU counts as slowed down."""


def examined(others: str) -> Iterator[Gpus | Missing]:
    """Yield which GPUs exist, then also their condition; see `probe.gpu.gpus`."""
    found, root = collect(), Path("/")
    yield found
    # A device cgroup may show each process its own GPUs alone, which then nobody else reads.
    if isinstance(found, Gpus) and (others == "0" or len(found.devices) < int(others) or _hides(root, found)):
        yield examine(found, root)


def _hides(root: Path, found: Gpus) -> bool:
    return len({gpu.pci for gpu in found.devices}) < pci.count(root, pci.AMD)


def examine(found: Gpus, root: Path) -> Gpus:
    """Add the condition of the GPUs that `amdgpu.collect` found."""
    nodes = {node.ordinal: node for node in nodes_of(root)}
    places = {node.number: node.pci for node in nodes.values()}
    before = {n: amdgpu_metrics.read(node.device(root)) for n, node in nodes.items()}
    if any(isinstance(counters, amdgpu_metrics.Slowed) for counters in before.values()):
        time.sleep(_BETWEEN_SECONDS)
    clocks = {n: _clocks(before[n], amdgpu_metrics.read(node.device(root))) for n, node in nodes.items()}
    devices = tuple(
        msgspec.structs.replace(gpu, health=_health(root, nodes[gpu.index], places, clocks[gpu.index]))
        if gpu.index in nodes
        else gpu
        for gpu in found.devices
    )
    return msgspec.structs.replace(found, devices=devices)


def _clocks(before: amdgpu_metrics.Slowed | Missing, after: amdgpu_metrics.Slowed | Missing) -> GpuClocks:
    """Return what slows a GPU down now, as NVML's reasons."""
    shares = amdgpu_metrics.shares(before, after)
    if isinstance(shares, Missing):
        return GpuClocks(event_reasons=shares)
    if shares.prochot < _SLOWED and isinstance(shares.heat, Missing):
        return GpuClocks(event_reasons=shares.heat)
    hot = not isinstance(shares.heat, Missing) and shares.heat >= _SLOWED
    return GpuClocks(event_reasons=HARDWARE_THERMAL * (shares.prochot >= _SLOWED) | SOFTWARE_THERMAL * hot)


def watched(*uuids: str) -> GpuLoads | Missing:
    """Watch GPUs until standard input is closed; see `gpu_load.watching`."""
    from distcheck.probe.amdgpu_log import recent
    from distcheck.probe.gpu_load import until_closed

    found = watch(Path("/"), uuids, until_closed)
    return found if isinstance(found, Missing) else msgspec.structs.replace(found, driver_errors=recent())


def watch(root: Path, uuids: Sequence[str], wait: Callable[[float], bool]) -> GpuLoads | Missing:
    """Watch GPUs until `wait`, called with seconds, returns True; one that leaves KFD's list is lost."""
    from distcheck.probe.gpu_load import LOOK_SECONDS, Look, load

    began, before = time.monotonic(), _of(root, uuids)
    looks: dict[str, list[Look]] = {uuid: [] for uuid in before}
    folders = {uuid: root / "sys/bus/pci/devices" / str(gpu.pci) for uuid, gpu in before.items()}
    monitors = {uuid: sensors_of(folder) for uuid, folder in folders.items()}
    counters = {uuid: amdgpu_metrics.read(folder) for uuid, folder in folders.items()}
    while not wait(LOOK_SECONDS):
        for uuid, monitor in monitors.items():
            celsius, _ = _hottest(monitor)
            looks[uuid].append(Look(0, None, None, None if isinstance(celsius, Missing) else celsius))
    slowed = {uuid: amdgpu_metrics.shares(counters[uuid], amdgpu_metrics.read(folders[uuid])) for uuid in folders}
    after, seconds = _of(root, uuids), time.monotonic() - began
    loads = {}
    for uuid, gpu in before.items():
        then, now = gpu.health, after[uuid].health if uuid in after else None
        if then is not None and now is not None:
            loads[uuid] = _with(load(then, now, looks[uuid], seconds), slowed[uuid])
    return GpuLoads(loads, dict.fromkeys(before.keys() - after.keys(), "amdgpu: it left KFD's list"))


def _with(load: GpuLoad, shares: amdgpu_metrics.Shares | Missing) -> GpuLoad:
    """Add for how long the firmware slowed a GPU down."""
    if isinstance(shares, Missing):
        return msgspec.structs.replace(load, hardware_thermal_seconds=shares, software_thermal_seconds=shares)
    heat = shares.heat if isinstance(shares.heat, Missing) else shares.heat * load.seconds
    prochot = shares.prochot * load.seconds
    return msgspec.structs.replace(load, hardware_thermal_seconds=prochot, software_thermal_seconds=heat)


def _of(root: Path, uuids: Sequence[str]) -> dict[str, Gpu]:
    found = collect(root)
    devices = examine(found, root).devices if isinstance(found, Gpus) else ()
    return {gpu.uuid: gpu for gpu in devices if isinstance(gpu.uuid, str) and gpu.uuid in uuids}


def sensors_of(device: Path) -> Path:
    """Return the folder with a GPU's sensors."""
    return next((device / "hwmon" / name for name in listed(device / "hwmon")), device / "hwmon")


def _health(root: Path, node: Node, places: Mapping[int, str], clocks: GpuClocks) -> GpuHealth:
    device = node.device(root)
    errors, pages = _errors(device / "ras"), contents(device / "ras/gpu_vram_bad_pages").splitlines()
    sensors = sensors_of(device)
    celsius, limit = _hottest(sensors)
    return GpuHealth(
        ecc=Ecc(uncorrected_volatile=errors if isinstance(errors, Missing) else sum(errors.values())),
        retired_pages_pending=any(line.endswith(": P") for line in pages),
        clocks=clocks,
        pcie=_pcie(root, device),
        power_limit_watts=_watts(sensors / "power1_cap"),
        power_limit_default_watts=_watts(sensors / "power1_cap_default"),
        temperature_celsius=celsius,
        slowdown_celsius=limit,
        processes=processes(root, contents(node.folder / "gpu_id")),
        vbios=contents(device / "vbios_version") or NOT_SUPPORTED,
        amd=Amd(
            compute_partition=contents(device / "current_compute_partition"),
            memory_partition=contents(device / "current_memory_partition"),
            xgmi=tuple(_xgmi(node, places)),
            uncorrected={} if isinstance(errors, Missing) else {name: n for name, n in errors.items() if n},
            failed_pages=sum(line.endswith(": F") for line in pages),
            iommu=contents(device / "iommu_group/type"),
            firmware=_firmware(device),
            performance_level=contents(device / "power_dpm_force_performance_level"),
        ),
    )


def _firmware(device: Path) -> dict[str, str]:
    """Return the versions of a card's firmware; 0x00000000 is of a kind that it does not have."""
    folder, ending = device / "fw_version", "_fw_version"
    files = {name.removesuffix(ending): folder / name for name in listed(folder) if name.endswith(ending)}
    found = {name: contents(file) for name, file in {"vbios": device / "vbios_version", **files}.items()}
    return {name: version for name, version in found.items() if version.strip("0x")}


def _errors(ras: Path) -> dict[str, int] | Missing:
    """Return the uncorrectable errors of each block (``ue: 0``, then ``ce: 0``); the driver adds them up.

    Some blocks have no counter and refuse. While the card resets, all do, or say ``Query currently inaccessible``.
    """
    blocks = [name for name in listed(ras) if name.endswith(_BLOCK)]
    texts = {name: contents(ras / name) for name in blocks}
    found = {
        name: int(match[1]) for name, text in texts.items() if (match := re.match(r"ue: (\d+)$", text, re.MULTILINE))
    }
    if not found:
        said = next(filter(None, texts.values()), "the counters cannot be read")
        return Missing(reason=f"amdgpu: {said[:80]}") if blocks else NOT_SUPPORTED
    bogus = {name for name, errors in found.items() if errors and errors % BOGUS_ERRORS == 0}
    return {name.removesuffix(_BLOCK): errors for name, errors in found.items() if name not in bogus}


def _pcie(root: Path, device: Path) -> PcieLink:
    """Return the link between the slot and the card, which is above the card's own switch if it has one.

    The function behind that switch always shows its full width.
    """
    bus = root / "sys/bus/pci/devices"
    port, card = device.resolve(), device
    while (contents(bus / port.parent.name / "vendor"), contents(bus / port.parent.name / "device")) in _OWN_BRIDGES:
        port = port.parent
        card = bus / port.name
    above = bus / port.parent.name
    widths = [n for folder in (card, above) if (n := integer(folder / "max_link_width"))]
    speeds = [n for folder in (card, above) if (n := _generation(folder / "max_link_speed"))]
    width, replays = integer(card / "current_link_width"), integer(device / "pcie_replay_count")
    return PcieLink(
        width=NOT_SUPPORTED if width is None else width,
        max_generation=min(speeds) if speeds else NOT_SUPPORTED,
        max_width=min(widths) if widths else NOT_SUPPORTED,
        replays=NOT_SUPPORTED if replays is None else replays,
    )


def _generation(file: Path) -> int | None:
    match = re.match(r"\d+(\.\d+)?", contents(file))  # 32.0 GT/s PCIe, or Unknown
    return _GENERATIONS.get(float(match[0])) if match else None


def _watts(file: Path) -> float | Missing:
    microwatts = integer(file)
    return NOT_SUPPORTED if microwatts is None else microwatts / 1e6


def _hottest(monitor: Path) -> tuple[int | Missing, int | Missing]:
    """Return the temperature of the sensor that is nearest to its critical one, and that.

    MI300 has the sensors junction and mem, others also edge.
    """
    pairs = []
    for name in listed(monitor):
        if re.fullmatch(r"temp\d+_input", name):
            now, most = integer(monitor / name), integer(monitor / name.replace("_input", "_crit"))
            if now is not None and most:
                pairs.append((most - now, now // 1000, most // 1000))
    if not pairs:
        return NOT_SUPPORTED, NOT_SUPPORTED
    _, celsius, limit = min(pairs)
    return celsius, limit


def processes(root: Path, gpu_id: str) -> tuple[GpuProcess, ...] | Missing:
    """Return the processes with memory on a GPU; each that has opened KFD has a folder there, by the host's numbers."""
    folder = root / KFD / "proc"
    used = ((pid, integer(folder / pid / f"vram_{gpu_id}")) for pid in listed(folder) if pid.isdecimal())
    found = tuple(GpuProcess(int(pid), bytes_) for pid, bytes_ in used if bytes_)
    return found if folder.is_dir() else NOT_SUPPORTED


def _xgmi(node: Node, places: Mapping[int, str]) -> Iterator[XgmiPeer]:
    """Yield the GPUs of the same hive; KFD also lists those that are reached through others, without a bandwidth."""
    for name in listed(node.folder / "io_links"):
        link = values(node.folder / "io_links" / name / "properties")
        peer = places.get(link.get("node_to", -1))
        if link.get("type") == _XGMI and peer is not None:
            direct = link.get("max_bandwidth", 0)
            yield XgmiPeer(peer, hops=max(1, link.get("weight", 0) // _HOP), MBps=direct)
