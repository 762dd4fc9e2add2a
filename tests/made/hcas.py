"""What /sys and /dev show of RDMA adapters, written below a folder as their drivers present them.

The texts are those of drivers/infiniband/core/sysfs.c. mlx5 has 256 GIDs on Ethernet and a board_id; EFA reports the
link layer Unspecified, no GUID and no subnet manager; rxe has no PCI function; hfi1 has no hw_counters of mlx5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

STATES = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}
PHYSICAL = {"Polling": 2, "Disabled": 3, "LinkUp": 5}
V1, V2 = "IB/RoCE v1", "RoCE v2"
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
COUNTERS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_wait")
MLX5_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "rp_cnp_handled")


class Adapter(NamedTuple):
    """An adapter with one port."""

    name: str
    link: str = "InfiniBand"
    driver: str = "mlx5_core"
    state: str = "ACTIVE"
    physical: str = "LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    gids: tuple[tuple[str, str], ...] = (("fe80:0000:0000:0000:a088:c203:00f0:0001", V1),)
    """Address and type by index; an empty address is an empty entry."""
    gid_slots: int = 8
    keys: tuple[int, ...] = (0xFFFF, 0, 0)
    guid: str = "a088:c203:00f0:0001"
    board: str = "MT_0000000838"
    counters: Mapping[str, int] = {}
    file: str = "usable"
    """usable, or absent from /dev/infiniband."""
    port: int = 1


def ipv4(address: str) -> str:
    """Return the GID of an IPv4 address as sysfs prints it."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def infiniband(name: str = "mlx5_0", **fields: object) -> Adapter:
    """Return a ConnectX-7 on InfiniBand."""
    return Adapter(name)._replace(**fields)


def roce(name: str = "mlx5_0", address: str = "10.1.0.1", **fields: object) -> Adapter:
    """Return a ConnectX-7 on Ethernet: each address twice in the GID table, the link-local one first."""
    own = "fe80:0000:0000:0000:a288:c2ff:fef0:0001"
    gids = ((own, V1), (own, V2), *(((ipv4(address), V1), (ipv4(address), V2)) if address else ()))
    return Adapter(name, "Ethernet", gids=gids, keys=(0xFFFF,))._replace(**fields)


def efa(name: str = "rdmap16s27") -> Adapter:
    """Return an Elastic Fabric Adapter."""
    gid = "fe80:0000:0000:0000:100b:f5ff:fe02:e2b0"
    return Adapter(
        name, "Unspecified", "efa", rate="100 Gb/sec (4X EDR)", gids=((gid, ""),), gid_slots=1,
        guid="0000:0000:0000:0000", board="",
    )  # fmt: skip


def rxe(name: str = "rxe0", address: str = "10.1.0.1") -> Adapter:
    """Return Soft-RoCE."""
    return roce(name, address, driver="", board="", rate="2.5 Gb/sec (1X SDR)")


def hfi1(name: str = "hfi1_0") -> Adapter:
    """Return an Omni-Path adapter; its board_id is a text of several words."""
    board = "Intel Omni-Path HFI Adapter 100 Series"
    return Adapter(name, driver="hfi1", rate="100 Gb/sec (4X EDR)", board=board)


def write(root: Path, adapters: Iterable[Adapter]) -> Path:
    """Write the adapters below `root`; return it."""
    (root / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
    for number, adapter in enumerate(adapters):
        _adapter(root, adapter, number)
    return root


def _adapter(root: Path, adapter: Adapter, number: int) -> None:
    shown = root / "sys/class/infiniband" / adapter.name  # in the kernel a link; a folder can be mounted elsewhere
    _write(shown / "node_guid", adapter.guid)
    if adapter.board:
        _write(shown / "board_id", adapter.board)
    if adapter.driver:
        (shown / "device").mkdir(parents=True, exist_ok=True)
        link = shown / "device/driver"
        if not link.is_symlink():
            link.symlink_to(f"../../../../bus/pci/drivers/{adapter.driver}")
        (shown / f"device/infiniband_verbs/uverbs{number}").mkdir(parents=True, exist_ok=True)
    _write(root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", adapter.name)
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    if adapter.file == "usable":
        _write(root / f"dev/infiniband/uverbs{number}", "")
    port = shown / f"ports/{adapter.port}"
    texts = {
        "state": f"{STATES[adapter.state]}: {adapter.state}",
        "phys_state": f"{PHYSICAL[adapter.physical]}: {adapter.physical}",
        "rate": adapter.rate,
        "link_layer": adapter.link,
    }
    for name, text in texts.items():
        _write(port / name, text)
    for index in range(adapter.gid_slots):
        address, kind = adapter.gids[index] if index < len(adapter.gids) else ("", "")
        _write(port / f"gids/{index}", address or _ZERO)
        if address and kind:
            _write(port / f"gid_attrs/types/{index}", kind)
            _write(port / f"gid_attrs/ndevs/{index}", f"ens{number}np0")
    for index, key in enumerate(adapter.keys):
        _write(port / f"pkeys/{index}", f"{key:#06x}")
    for name in COUNTERS:
        _write(port / "counters" / name, str(adapter.counters.get(name, 0)))
    if adapter.driver == "mlx5_core":
        for name in MLX5_COUNTERS:
            _write(port / "hw_counters" / name, str(adapter.counters.get(name, 0)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
