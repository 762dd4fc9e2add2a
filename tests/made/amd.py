"""What /sys, /proc and /dev show of machines with AMD GPUs, written below a folder.

KFD's files are as ROCm/k8s-device-plugin recorded them (testdata/topo-mi300-cpx, topology-parsing-mi308); addresses,
bridges and links as RCCL's models have them (tools/topo_expl/models/topo_8p_940.xml, topo_8p_90a.xml).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from made import machines

CLASSES = {"0x74a1": "0x120000", "0x7408": "0x038000"}
FULL = {(one, other): 1 for one in range(8) for other in range(one)}
MI250X_LINKS = {(0, 1): 4, (0, 2): 1, (0, 6): 1, (1, 3): 1, (1, 5): 1, (2, 3): 4, (2, 4): 1, (3, 7): 1, (4, 5): 4}
MI250X_LINKS |= {(4, 6): 1, (5, 7): 1, (6, 7): 4}
ATTRIBUTES = (
    "H H - H H H Q Q Q I I I I I I I H H H H I I Q Q Q Q Q I I 8Q 8Q 8H Q 8H 4H 4H 4H H H I 8I 40H 4H 8Q 8Q 8Q 8Q 8Q"
)
"""Number and type of what an MI300X writes in gpu_metrics 1.9, by the kernel's id; the table has 1150 bytes.

Source: https://github.com/SebastianM-C/GPUDiagnostics.jl/tree/main/test/fixtures/amdgpu, of a virtual function."""
BLOCKS = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")


class Gpu(NamedTuple):
    """A GPU, or a partition of one."""

    path: tuple[str, ...]
    """From the root complex down to its PCI function."""
    unique_id: int
    numa: int = 0
    device: str = "0x74a1"
    partition: int = 0
    """Its number on the card."""
    mode: str = "SPX NPS1"
    """Compute and memory partition; empty if it has none."""
    vram: int = 206141652992
    used: int = 297795584
    in_kfd: bool = True
    driver: str = "amdgpu"
    width: int = 16
    """Lanes between the card and its slot."""
    errors: Mapping[str, str] = {}
    """By RAS block, instead of no error."""
    pages: str = ""
    celsius: Mapping[str, int] = {"junction": 42, "mem": 38}
    watts: tuple[int, int] = (750, 750)
    """The cap, and the default cap."""
    level: str = "auto"
    busy: int = 0
    """Percent."""
    draws: int = 140
    """Watts."""
    firmware: Mapping[str, str] = {"smc": "0x00557500", "mec": "0x0000009f", "ce": "0x00000000"}
    vbios: str = "113-M3000100-102"
    metrics: bytes = b""
    """The binary file gpu_metrics."""
    iommu: str = "identity"
    users: Mapping[int, int] = {}
    """Bytes of its memory, by process."""
    render: bool = True
    """Whether /dev/dri has its file."""


class Machine(NamedTuple):
    gpus: tuple[Gpu, ...]
    links: Mapping[tuple[int, int], int] = FULL
    """XGMI links between two GPUs, which are of one hive; others of it are reached through these."""
    nics: tuple[machines.Card, ...] = ()
    version: str = "6.12.12"
    """Of the driver; empty for the kernel's own."""
    kfd: bool = True
    """Whether /dev has its file."""


def mi300x() -> Machine:
    """Return eight GPUs, each behind a switch of its own on a switch with its adapter."""
    gpus, nics = [], []
    for n, bus in enumerate((0x0C, 0x15, 0x1E, 0x69, 0x9F, 0xAF, 0xBF, 0xDF)):
        root = (f"pci0000:{bus - 8:02x}", f"0000:{bus - 8:02x}:01.0", f"0000:{bus - 7:02x}:00.0")
        behind = tuple(f"0000:{b:02x}:00.0" for b in (bus - 4, bus - 2, bus - 1, bus))
        gpus.append(Gpu((*root, *behind), 0xA1B2_0000_0000_0010 + n, n // 4))
        nic = (*root, f"0000:{bus - 6:02x}:00.0", f"0000:{bus - 5:02x}:00.0")
        nics.append(machines.Card(nic, n // 4, ib=f"mlx5_{n}", net=f"ibp{bus - 5}s0"))
    return Machine(tuple(gpus), nics=tuple(nics))


def mi250x() -> Machine:
    """Return four cards of two dies; the second die has no power limit of its own."""
    gpus = tuple(
        Gpu(
            ("pci0000:c0", f"0000:c0:{n + 1:02x}.1", f"0000:{bus:02x}:00.0"), 0x0123_4567_89AB_CD00 + n, n // 4,
            "0x7408", mode="", vram=68702699520, used=11534336, celsius={"edge": 35, "junction": 40, "mem": 38},
            watts=(0, 0) if n % 2 else (560, 560),
        )
        for n, bus in enumerate((0xC1, 0xC5, 0xC9, 0xCD, 0xD1, 0xD5, 0xD9, 0xDD))
    )  # fmt: skip
    return Machine(gpus, MI250X_LINKS, version="")


def cpx(cards: int = 1) -> Machine:
    """Return MI300X cards of which each is eight GPUs."""
    parts = [
        gpu._replace(partition=n, mode="CPX NPS4", vram=25769803776) for gpu in mi300x().gpus[:cards] for n in range(8)
    ]
    return Machine(tuple(parts), {})


MI300X, MI250X, CPX = mi300x(), mi250x(), cpx()


def change(machine: Machine, number: int, **fields: object) -> Machine:
    """Return the machine with another state of one GPU."""
    gpus = tuple(gpu._replace(**fields) if n == number else gpu for n, gpu in enumerate(machine.gpus))
    return machine._replace(gpus=gpus)


def write(root: Path, machine: Machine, seen_at: Path | None = None) -> Path:
    """Write what the kernel shows below `root`, which its readers find at `seen_at`; return `root`."""
    machines.write(root, machines.Machine(machine.nics, {0: "0-55,112-167", 1: "56-111,168-223"}), seen_at)
    _text(root / "sys/module/amdgpu/initstate", "live")
    if machine.version:
        _text(root / "sys/module/amdgpu/version", machine.version)
    _text(root / "proc/sys/kernel/osrelease", "6.8.0-45-generic")
    kfd = root / "sys/devices/virtual/kfd/kfd"
    machines._link(root / "sys/class/kfd/kfd", Path("../../devices/virtual/kfd/kfd"))
    if machine.kfd:
        _text(root / "dev/kfd", "")
    for number in range(2):
        _node(kfd / f"topology/nodes/{number}", 0, {"cpu_cores_count": 112, "simd_count": 0}, name="")
    (kfd / "proc").mkdir(parents=True, exist_ok=True)
    numbers: dict[int, int] = {}
    for index, gpu in enumerate(machine.gpus):
        _device(root, seen_at or root, gpu, index)
        if gpu.in_kfd:
            numbers[index] = len(numbers) + 2
    for index, number in numbers.items():
        gpu, gpu_id = machine.gpus[index], 41000 + index
        folder = kfd / f"topology/nodes/{number}"
        _node(folder, gpu_id, _properties(gpu, index), name="ip discovery")
        _text(folder / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {gpu.vram}\nflags 0\nwidth 8192")
        if gpu.mode.startswith("CPX"):
            _text(folder / "mem_banks/0/used_memory", str(gpu.used // 8))
        _links(folder / "io_links", machine, index, numbers)
        for pid in {pid for other in machine.gpus for pid in other.users}:
            _text(kfd / f"proc/{pid}/vram_{gpu_id}", str(gpu.users.get(pid, 0)))
        if gpu.render:
            _text(root / f"dev/dri/renderD{128 + 8 * index}", "")
    return root


_ENTER = """
set -e
for file in null zero urandom random full tty; do : > "$1/dev/$file"; mount --bind "/dev/$file" "$1/dev/$file"; done
mkdir -p "$1/dev/shm" "$1/dev/pts"
mount --bind "$1/sys" /sys
mount --rbind "$1/dev" /dev
shift
exec "$@"
"""


def inside(root: Path) -> list[str]:
    """Return the words before a command that runs it where a tree written for ``/`` is /sys and /dev."""
    return ["unshare", "-m", "sh", "-c", _ENTER, "sh", str(root)]


def _properties(gpu: Gpu, index: int) -> dict[str, int]:
    bus = int(gpu.path[-1].split(":")[1], 16)
    return {
        "cpu_cores_count": 0, "simd_count": 1216, "vendor_id": 4098, "device_id": int(gpu.device, 16),
        "location_id": bus << 8 | gpu.partition << 28, "domain": 0, "drm_render_minor": 128 + 8 * index,
        "hive_id": 0xF1E2_0000_0000_0001, "unique_id": gpu.unique_id, "gfx_target_version": 90402,
    }  # fmt: skip


def _node(folder: Path, gpu_id: int, properties: Mapping[str, int], name: str) -> None:
    _text(folder / "gpu_id", str(gpu_id))
    _text(folder / "name", name)
    _text(folder / "properties", "\n".join(f"{key} {value}" for key, value in properties.items()))


def _links(folder: Path, machine: Machine, index: int, numbers: Mapping[int, int]) -> None:
    _text(folder / "0/properties", f"type 2\nnode_from {numbers[index]}\nnode_to 0\nweight 20\nmax_bandwidth 64000")
    peers = [other for other in numbers if other != index and machine.links]
    for place, other in enumerate(peers, start=1):
        links = machine.links.get((index, other)) or machine.links.get((other, index), 0)
        rate, ends = 50000 * links, f"node_from {numbers[index]}\nnode_to {numbers[other]}"
        text = f"type 11\n{ends}\nweight {15 if links else 30}\nmin_bandwidth {rate}\nmax_bandwidth {rate}"
        _text(folder / f"{place}/properties", text)


def _device(root: Path, links: Path, gpu: Gpu, index: int) -> None:
    devices = root / "sys/devices"
    own = {gpu.path[-3], gpu.path[-2]} if gpu.device == "0x74a1" else set()
    for depth in range(2, len(gpu.path) + 1):
        name, folder = gpu.path[depth - 1], devices.joinpath(*gpu.path[:depth])
        last = depth == len(gpu.path)
        kind = {"vendor": "0x8086", "device": "0x352a", "class": machines.BRIDGE}
        if name in own:
            kind |= {"vendor": "0x1022", "device": "0x1500" if name == gpu.path[-3] else "0x1501"}
        if last:
            kind = {"vendor": "0x1002", "device": gpu.device, "class": CLASSES.get(gpu.device, "0x120000")}
        slot = name == gpu.path[-3] if own else last
        kind |= {"current_link_width": str(gpu.width if slot else 16), "max_link_width": "16"}
        kind |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
        kind |= {"numa_node": str(gpu.numa), "local_cpulist": ("0-55,112-167", "56-111,168-223")[gpu.numa]}
        for file, text in kind.items():
            _text(folder / file, text)
        machines._link(root / "sys/bus/pci/devices" / name, links / folder.relative_to(root))
    device = devices.joinpath(*gpu.path)
    if gpu.driver:
        machines._link(device / "driver", Path(f"../../bus/pci/drivers/{gpu.driver}"))
    if gpu.driver != "amdgpu" or not gpu.in_kfd:
        return
    compute, _, memory = gpu.mode.partition(" ")
    files = {
        "unique_id": f"{gpu.unique_id:016x}",
        "mem_info_vram_total": str(gpu.vram),
        "mem_info_vram_used": str(gpu.used),
        "pcie_replay_count": "0",
        "iommu_group/type": gpu.iommu,
        "vbios_version": gpu.vbios,
        **{f"fw_version/{name}_fw_version": version for name, version in gpu.firmware.items()},
        "power_dpm_force_performance_level": gpu.level,
        "gpu_busy_percent": str(gpu.busy),
        f"hwmon/hwmon{index + 3}/power1_input": str(gpu.draws * 10**6),
        "ras/gpu_vram_bad_pages": gpu.pages,
        **({"current_compute_partition": compute, "current_memory_partition": memory} if gpu.mode else {}),
        **{f"ras/{block}_err_count": gpu.errors.get(block, "ue: 0\nce: 0") for block in BLOCKS},
        f"hwmon/hwmon{index + 3}/name": "amdgpu",
        f"hwmon/hwmon{index + 3}/power1_cap": str(gpu.watts[0] * 10**6),
        f"hwmon/hwmon{index + 3}/power1_cap_default": str(gpu.watts[1] * 10**6),
    }
    for place, (label, celsius) in enumerate(gpu.celsius.items(), start=2):
        sensor = f"hwmon/hwmon{index + 3}/temp{place}"
        files |= {f"{sensor}_label": label, f"{sensor}_input": str(celsius * 1000), f"{sensor}_crit": "100000"}
    for file, text in files.items():
        _text(device / file, text)
    if gpu.metrics:
        (device / "gpu_metrics").write_bytes(gpu.metrics)


def metrics(revision: int, ticks: int, *, prochot: int = 0, power: int = 0, heat: int = 0) -> bytes:
    """Return gpu_metrics of revision 1.6 to 1.9 with these counters; heat is that of the socket."""
    counters = (ticks, prochot, power, heat, 0, 0)
    if revision == 9:
        body = b"".join(
            struct.pack("<Q", "BbHhIiQq".index(kind[-1]) << 20 | number << 10 | int(kind[:-1] or 1))
            + (struct.pack("<I", counters[number - 9]) if 8 < number < 15 else bytes(struct.calcsize(f"<{kind}")))
            for number, kind in enumerate(ATTRIBUTES.split())
            if kind != "-"
        )
        return struct.pack("<HBBi", 8 + len(body), 1, 9, 47) + body
    size, place = {3: (120, 0), 6: (1664, 32), 7: (2208, 40), 8: (3872, 40)}[revision]
    table = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", table, 0, size, 1, revision)
    if place:
        struct.pack_into("<6I", table, place, *counters)
    return bytes(table)


def _text(path: Path, text: str) -> None:
    machines._write(path, f"{text}\n" if text else "")
