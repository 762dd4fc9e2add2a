"""Rules about the ports of RDMA adapters: down, without a subnet manager, slow, without a GUID."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Answer, rule
from distcheck.rules.fabric.lines import FabricPort, alone, by_name, each_port, views
from distcheck.rules.finding import Fault
from distcheck.rules.wording import grouped, once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIBLINGS = 4
"""How many ports of one board must be up on a node for one that is down to be a fault, or a slow one."""
_ONE_LANE = 1
_VENDOR = "mlx"
"""What NVIDIA's drivers begin with: mlx4_core, mlx5_core."""
_EXPECTED = "ib-fewer-active-adapters-than-expected"
_Key = tuple[str, str]
"""A port: its node's key and its name."""


@rule("peers", scope="node", also=("node",), unless=(_EXPECTED,), owner="admin", of=each_port)
def ib_port_down(job: Job, line: FabricPort) -> Answer:
    """A port of an InfiniBand or RoCE adapter is down that is up on the other nodes.

    NCCL leaves out ports that are not active, without a warning, so this node has one path fewer and the whole job
    waits for it. A node without any active port uses TCP sockets: ``NET/IB : No device found.``, while the others use
    InfiniBand, and the start fails.

    Found by comparing the state of the port of the same name on all nodes; `distcheck node` compares the ports of the
    same board. Ports that NCCL_IB_HCA excludes, and ports that are down everywhere, are no fault. It is an error for a
    node that has no active port left.

    Fix: Check the cable and the switch port; drain the node until the port is up.

        ibstat {hca}
        cat /sys/class/infiniband/{hca}/ports/{hca_port}/phys_state
        rdma link show {hca}/{hca_port}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    if line.active or (line.node.key, line.name) not in _down(job):
        return None
    others = "the other ports of this board are up" if alone(job) else "up on the other nodes"
    return _inactive(job, line, f"down ({line.port.physical_state or line.port.state}); {others}")


@once
def _down(job: Job) -> set[_Key]:
    """Return the ports that are down where at least half of those that should be alike are up."""
    found: set[_Key] = set()
    for lines in _compared(job):
        known = [line for line in lines if line.port.state and not _uninitialised(line) and not _without_guid(line)]
        inactive = [line for line in known if not line.active]
        if len(known) - len(inactive) >= max(len(inactive), 1):
            found |= {(line.node.key, line.name) for line in inactive}
    return found


def _compared(job: Job) -> Iterable[Sequence[FabricPort]]:
    """Return groups of ports that should be alike: of one name on all nodes, or of one board on one node."""
    if not alone(job):
        return [lines for lines in by_name(job).values() if not all(line.active for line in lines)]
    lines = [line for view in views(job) for line in view.lines if line.own and line.hca.board]
    groups = grouped(lines, lambda line: (line.hca.board, line.port.link_layer)).values()
    return [group for group in groups if sum(line.active for line in group) >= _SIBLINGS]


def _inactive(job: Job, line: FabricPort, state: str) -> Fault:
    """Return the fault of a port that NCCL cannot use, worse where its node has no other one."""
    if line.node.key in _working(job):
        return Fault(state, severity="warning")
    return Fault(f"{state}; the node has no active port left")


@once
def _working(job: Job) -> set[str]:
    return {view.node.key for view in views(job) if view.taken}


def _uninitialised(line: FabricPort) -> bool:
    """Whether a port waits for a subnet manager: the cable is in, and nobody has activated the port."""
    link = line.port.link_layer == "InfiniBand" and line.port.physical_state == "LinkUp"
    return link and line.port.state in {"INIT", "ARMED"}


@rule("peers", scope="node", also=("node",), owner="admin", of=each_port)
def ib_no_subnet_manager(job: Job, line: FabricPort) -> Answer:
    """An InfiniBand port has a link, but no subnet manager has activated it.

    The port stays in the state INIT, and NCCL leaves it out: ``NET/IB : No device found.`` Then it uses TCP sockets.

    Found where phys_state is LinkUp and state is INIT or ARMED. It is an error for a node that has no active port left.

    Fix: Start or restart the subnet manager of this fabric: opensm on one node, UFM, or the one in the switch.

        sminfo -C {hca} -P {hca_port}
        sudo systemctl status opensm

    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/opensm
    """
    if not _uninitialised(line):
        return None
    return _inactive(job, line, f"in state {line.port.state} (LinkUp); no subnet manager has activated it")


@rule("peers", severity="warning", scope="node", also=("node",), owner="admin", of=each_port)
def ib_rate_degraded(job: Job, line: FabricPort) -> Answer:
    """An active InfiniBand or RoCE port is slower than its peers.

    A cable with a bad lane, or one made for a slower generation, brings the link up with fewer lanes or a lower speed.
    All ranks then run at the pace of this port.

    Found by the rate in sysfs: lower than that of the port of the same name and board on most other nodes, lower than
    that of the other InfiniBand ports of the same board on its node, or an InfiniBand link with one lane. Nodes with
    different boards are not compared.

    Fix: Reseat or replace the cable; check that cable, switch port and adapter support the expected speed.

        sudo mlxlink -d {hca} -m -e -c
        ibstat {hca}

    See: https://docs.nvidia.com/networking/display/mftv4310/mlxlink+utility
    """
    expected = _expected(job).get((line.node.key, line.name))
    port = line.port
    return f"{port.rate_Gbps or 0:g} Gb/s ({port.lanes}X {port.speed}); {expected}" if expected else None


@once
def _expected(job: Job) -> dict[_Key, str]:
    """Return what is expected of each port that is slower than its peers."""
    slow: dict[_Key, str] = {}

    def note(lines: Iterable[FabricPort], others: str, least: int = 2) -> None:
        for group in grouped(lines, lambda line: line.hca.board).values():
            for line, usual in _slower(group) if len(group) >= least else ():
                slow.setdefault((line.node.key, line.name), f"{others} have {usual:g} Gb/s")

    for lines in by_name(job).values():
        note([line for line in lines if line.active], "ports of that name on other nodes")
    for view in views(job):
        ports = [line for line in view.lines if line.active and line.port.link_layer == "InfiniBand" and line.hca.board]
        if len({line.port.rate_Gbps for line in ports}) > 1:
            note(ports, "the other ports of its board", _SIBLINGS)
        for line in ports:
            if line.port.lanes == _ONE_LANE and line.hca.driver.startswith(_VENDOR):
                slow.setdefault((line.node.key, line.name), "expected 4 lanes")
    return slow


def _slower(lines: Sequence[FabricPort]) -> list[tuple[FabricPort, float]]:
    """Return the ports that are slower than most of these, and the rate of most; of two, the slower."""
    rates = Counter(line.port.rate_Gbps for line in lines if line.port.rate_Gbps is not None)
    usual = max(rates, key=lambda rate: (rates[rate], rate), default=0.0)
    if 2 * rates[usual] < len(lines):
        return []
    return [(line, usual) for line in lines if line.port.rate_Gbps is not None and line.port.rate_Gbps < usual]


def _without_guid(line: FabricPort) -> bool:
    guid = line.hca.node_guid
    zero = guid.startswith("0") and not guid.strip("0:")
    return zero and line.port.link_layer == "InfiniBand" and line.hca.driver.startswith(_VENDOR)


@rule("peers", severity="warning", scope="node", also=("node",), owner="admin", of=each_port)
def ib_sriov_vf_guid(_: Job, line: FabricPort) -> Answer:
    """An InfiniBand virtual function has no GUID, so the subnet manager cannot configure it.

    Virtual functions start with GUIDs of zeros. Until the hypervisor assigns one, the port gets no LID, and NCCL fails
    or falls back to TCP sockets.

    Found where the node_guid of an NVIDIA adapter is all zeros on InfiniBand.

    Fix: On the hypervisor assign node and port GUIDs to the virtual function, then bind it again.

        cat /sys/class/infiniband/{hca}/node_guid
        ip link show

    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/Single+Root+IO+Virtualization+(SR-IOV)
    """
    return "no GUID; expected one from the hypervisor" if _without_guid(line) else None
