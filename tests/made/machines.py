"""What /sys, /proc and /dev show of machines with GPUs, written below a folder.

The addresses and NUMA nodes of NVIDIA's DGX machines are real ones; of their bridges only the arrangement is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

GPU, BRIDGE, NETWORK = "0x030200", "0x060400", "0x020000"
_VENDOR = {GPU: "0x10de", BRIDGE: "0x8086", NETWORK: "0x15b3"}
AZURE = ("LNXSYSTM:00", "LNXSYBUS:00", "ACPI0004:00", "VMBUS:00", "47505500-0001-0000-3130-444531334632")


class Card(NamedTuple):
    """A device at the end of a path of bridges."""

    path: tuple[str, ...]
    numa: int
    kind: str = NETWORK
    ib: str = ""
    """Name of its InfiniBand or RoCE device."""
    net: str = ""
    """Name of its network interface."""
    link: str = "InfiniBand"
    gbps: int = 400
    up: bool = True
    file: bool = True
    """Whether /dev/infiniband has its file."""
    above: tuple[str, ...] = ()
    """Folders of /sys/devices above the root complex."""
    below: tuple[str, ...] = ()
    """Folders between the PCI function and what its driver shows."""


class Machine(NamedTuple):
    cards: tuple[Card, ...]
    cpus: Mapping[int, str]
    """CPUs of each NUMA node."""
    virtual: bool = False


def _slot(root: int, device: int, port: int) -> tuple[str, ...]:
    """Return the path of a device below a switch that hangs at a root complex of its own."""
    return (
        f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{root + 1:02x}:00.0",
        f"0000:{root + 2:02x}:{port:02x}.0", f"0000:{device:02x}:00.0",
    )  # fmt: skip


def dgx_h100() -> Machine:
    """Return eight GPUs, each on one switch with its ConnectX-7; two dual-port cards for storage; an Ethernet card."""
    cards = []
    names = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    for n, bus in enumerate((0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)):
        cards.append(Card(_slot(bus - 6, bus, 2), n // 4, GPU))
        cards.append(Card(_slot(bus - 6, bus - 3, 0), n // 4, ib=names[n], net=f"ibp{bus - 3}s0"))
    for n, (root, bus) in enumerate(((0x26, 0x29), (0xA7, 0xAA))):
        for function in range(2):
            path = (f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{bus:02x}:00.{function}")
            name = f"mlx5_{(1, 7)[n] + function}"
            net = f"enp{bus}s0f{function}np{function}"
            cards.append(Card(path, n, ib=name, net=net, link="Ethernet", gbps=200, up=not function))
    cards.append(Card(("pci0000:00", "0000:00:10.0", "0000:0b:00.0"), 0, net="eno3", gbps=10))
    usb = ("usb1", "1-14", "1-14:2.0")
    cards.append(Card(("pci0000:00", "0000:00:14.0"), 0, net="enxbe3af2b6059f", gbps=0, below=usb))
    return Machine(tuple(cards), {0: "0-55,112-167", 1: "56-111,168-223"})


def dgx_a100() -> Machine:
    """Return eight GPUs; two and two ConnectX-6 share a switch, each below another one of its own."""
    cards = []
    pairs = ((0x07, 0x0F, 0x0C, 0x12), (0x47, 0x4E, 0x4B, 0x54), (0x87, 0x90, 0x8D, 0x94), (0xB7, 0xBD, 0xBA, 0xCC))
    roots, numa, cpus = (0x00, 0x40, 0x80, 0xB0), (3, 1, 7, 5), {}
    for n, (buses, root, node) in enumerate(zip(pairs, roots, numa, strict=True)):
        above = (f"pci0000:{root:02x}", f"0000:{root:02x}:01.1", f"0000:{root + 1:02x}:00.0")
        cpus[node] = f"{16 * node}-{16 * node + 15},{128 + 16 * node}-{128 + 16 * node + 15}"
        for port, bus in enumerate(buses):
            own = (f"0000:{root + 2:02x}:{port:02x}.0", f"0000:{bus - 2:02x}:00.0", f"0000:{bus - 1:02x}:00.0")
            path = (*above, *own, f"0000:{bus:02x}:00.0")
            nic = f"mlx5_{2 * n + port - 2 + (2 if n > 1 else 0)}"
            cards.append(Card(path, node, GPU) if port < 2 else Card(path, node, ib=nic, gbps=200, net=f"ibp{bus}s0"))
    return Machine(tuple(cards), cpus)


def pcie_l40s() -> Machine:
    """Return eight cards, each at a root complex of its own, and one network card on each socket."""
    buses = (0x1A, 0x3D, 0x4E, 0x5F, 0x9A, 0xBD, 0xCE, 0xDF)
    cards = [
        Card((f"pci0000:{bus - 1:02x}", f"0000:{bus - 1:02x}:01.0", f"0000:{bus:02x}:00.0"), n // 4, GPU)
        for n, bus in enumerate(buses)
    ]
    for n, bus in enumerate((0x28, 0xA9)):
        path = (f"pci0000:{bus - 1:02x}", f"0000:{bus - 1:02x}:01.0", f"0000:{bus:02x}:00.0")
        cards.append(Card(path, n, ib=f"mlx5_{n}", net=f"ens{n}np0", link="Ethernet", gbps=200))
    return Machine(tuple(cards), {0: "0-31,64-95", 1: "32-63,96-127"})


def azure_h100() -> Machine:
    """Return a virtual machine that has every device at a root complex of its own, without a bridge."""
    gpus = [f"{n:04x}" for n in (*range(1, 4), *range(8, 0xD))]
    cards = [Card((f"pci{d}:00", f"{d}:00:00.0"), n // 4, GPU, above=AZURE) for n, d in enumerate(gpus)]
    for n in range(8):
        domain = f"{0x101 + n:04x}"
        cards.append(Card((f"pci{domain}:00", f"{domain}:00:00.0"), n // 4, ib=f"mlx5_{n}", above=AZURE))
    return Machine(tuple(cards), {0: "0-47", 1: "48-95"}, virtual=True)


def virtio() -> Machine:
    """Return a small virtual machine: a GPU and a network card at the ports of one made-up root complex."""
    root = "pci0000:00"
    gpu = Card((root, "0000:00:02.0", "0000:01:00.0"), -1, GPU)
    net = Card((root, "0000:00:03.0", "0000:02:00.0"), -1, net="eth0", gbps=0, below=("virtio2",))
    return Machine((gpu, net), {}, virtual=True)


DGX_H100, DGX_A100, PCIE_L40S, AZURE_H100, VIRTIO = dgx_h100(), dgx_a100(), pcie_l40s(), azure_h100(), virtio()


def change(machine: Machine, name: str, **fields: object) -> Machine:
    """Return the machine with another state of one adapter, by the name of its InfiniBand or network device."""
    cards = tuple(card._replace(**fields) if name in {card.ib, card.net} else card for card in machine.cards)
    return machine._replace(cards=cards)


def write(root: Path, machine: Machine, seen_at: Path | None = None) -> Path:
    """Write what the kernel shows below `root`, which its readers find at `seen_at`; return `root`."""
    links = seen_at or root
    flags = "fpu vme hypervisor lahf_lm" if machine.virtual else "fpu vme lahf_lm"
    _write(root / "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\nvmx flags\t: x\n\nprocessor\t: 1\n")
    for folder in ("sys/bus/pci/devices", "sys/class/infiniband", "sys/class/net"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _write(root / "sys/class/net/lo/operstate", "unknown\n")
    for number, card in enumerate(machine.cards):
        devices = Path("sys/devices", *card.above)
        for depth in range(2, len(card.path) + 1):
            last = depth == len(card.path)
            _function(root, links, devices.joinpath(*card.path[:depth]), card.kind if last else BRIDGE, card, machine)
        function = devices.joinpath(*card.path)
        device = function.joinpath(*card.below)
        if card.ib:
            _infiniband(root, links, device, card, number)
        if card.net:
            _net(root, links, device, card)
    return root


def _function(root: Path, links: Path, device: Path, kind: str, card: Card, machine: Machine) -> None:
    cpus = machine.cpus.get(card.numa, ",".join(machine.cpus.values()))
    files = {"vendor": _VENDOR[kind], "class": kind, "numa_node": str(card.numa), "local_cpulist": cpus}
    for name, text in files.items():
        _write(root / device / name, f"{text}\n")
    _link(root / "sys/bus/pci/devices" / device.name, links / device)


def _infiniband(root: Path, links: Path, device: Path, card: Card, number: int) -> None:
    shown = device / "infiniband" / card.ib
    state = (
        {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}
        if card.up
        else {"state": "1: DOWN", "phys_state": "3: Disabled"}
    )
    rate = f"{card.gbps} Gb/sec (4X NDR)" if card.up else "40 Gb/sec (4X QDR)"
    for name, text in (state | {"rate": rate, "link_layer": card.link}).items():
        _write(root / shown / "ports/1" / name, f"{text}\n")
    _link(root / shown / "device", links / device)
    _link(root / "sys/class/infiniband" / card.ib, links / shown)
    (root / device / "infiniband_verbs" / f"uverbs{number}").mkdir(parents=True, exist_ok=True)
    if card.file:
        _write(root / "dev/infiniband" / f"uverbs{number}", "")


def _net(root: Path, links: Path, device: Path, card: Card) -> None:
    shown = device / "net" / card.net
    speed = card.gbps * 1000 if card.up and card.gbps else -1
    for name, text in {"carrier": str(int(card.up)), "speed": str(speed)}.items():
        _write(root / shown / name, f"{text}\n")
    _link(root / shown / "device", links / device)
    _link(root / "sys/class/net" / card.net, links / shown)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)


def gpus(machine: Machine) -> list[str]:
    """Return the addresses of a machine's GPUs."""
    return [card.path[-1] for card in machine.cards if card.kind == GPU]


def only(machine: Machine, names: Iterable[str]) -> Machine:
    """Return the machine without the adapters that are not named."""
    keep = set(names)
    return machine._replace(cards=tuple(c for c in machine.cards if c.kind == GPU or keep & {c.ib, c.net}))
