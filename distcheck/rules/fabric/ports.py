"""Rules about the ports of RDMA adapters: down, without a subnet manager, slow, without a GUID."""

from __future__ import annotations

from collections import Counter, defaultdict
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.lines import FabricPort, alone, by_name, not_read, ranks_of, shown, views, where
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.wording import are, found, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SIBLINGS = 4
"""How many ports of one board must be up on a node for one that is down to be a fault, or a slow one."""
_ONE_LANE = 1
_VENDOR = "mlx"
"""What NVIDIA's drivers begin with: mlx4_core, mlx5_core."""


@rule("peers", scope="node", also=("node",), owner="admin")
def ib_port_down(job: Job) -> Iterator[Outcome]:
    """A port of an InfiniBand or RoCE adapter is down that is up on the other nodes.

    NCCL leaves out ports that are not active, without a warning, so this node has one path fewer and the whole job
    waits for it. A node without any active port uses TCP sockets: ``NET/IB : No device found.``, while the others use
    InfiniBand, and the start fails.

    Found by comparing the state of the port of the same name on all nodes; `distcheck node` compares the ports of the
    same board. Ports that NCCL_IB_HCA excludes, and ports that are down everywhere, are no fault. It is an error for a
    node that has no active port left.

    Fix: check cable and switch port, ``ibstat mlx5_0``; drain the node until the port is up.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    yield from not_read(job)
    down = []
    for lines in _compared(job):
        if all(line.active for line in lines):
            continue
        known = [line for line in lines if line.port.state and not _uninitialised(line) and not _without_guid(line)]
        inactive = [line for line in known if not line.active]
        if len(known) - len(inactive) >= max(len(inactive), 1):
            down += inactive
    yield from _by_node(
        job,
        down,
        "down",
        "up on the other nodes" if not alone(job) else "the other ports of this board are up",
        lambda line: Fix(
            "Check the cable and the switch port; drain the node until the port is up.",
            (
                f"ibstat {quote(line.hca.name)}",
                f"cat /sys/class/infiniband/{quote(line.hca.name)}/ports/{line.port.number}/phys_state",
                f"rdma link show {quote(line.hca.name)}/{line.port.number}",
            ),
        ),
    )


def _compared(job: Job) -> list[list[FabricPort]]:
    """Return groups of ports that should be alike: of one name on all nodes, or of one board on one node."""
    if not alone(job):
        return [lines for lines in by_name(job).values() if len(lines) > 1]
    lines = [line for view in views(job) for line in view.lines if line.own and line.hca.board]
    groups = grouped(lines, lambda line: (line.hca.board, line.port.link_layer)).values()
    return [group for group in groups if sum(line.active for line in group) >= _SIBLINGS]


def _by_node(job: Job, lines: Sequence[FabricPort], state: str, others: str, fix: object) -> Iterator[Fault]:
    """Yield one finding for the nodes without an active port left, and one for the others."""
    left = {view.node.key for view in views(job) if view.taken}
    for works, group in grouped(lines, lambda line: line.node.key in left).items():
        yield found(
            job,
            ranks_of(job, group),
            f"{where(group)} {are(group)} {state} ({group[0].port.physical_state or group[0].port.state}); {others}"
            f"{'' if works else '; the node has no active port left'}",
            fix(group[0]),  # type: ignore[operator]  # a function of a line
            severity="warning" if works else "error",
            evidence=shown(group),
        )


def _uninitialised(line: FabricPort) -> bool:
    """Whether a port waits for a subnet manager: the cable is in, and nobody has activated the port."""
    link = line.port.link_layer == "InfiniBand" and line.port.physical_state == "LinkUp"
    return link and line.port.state in {"INIT", "ARMED"}


@rule("peers", scope="node", also=("node",), owner="admin")
def ib_no_subnet_manager(job: Job) -> Iterator[Outcome]:
    """An InfiniBand port has a link, but no subnet manager has activated it.

    The port stays in the state INIT, and NCCL leaves it out: ``NET/IB : No device found.`` Then it uses TCP sockets.

    Found where phys_state is LinkUp and state is INIT or ARMED. It is an error for a node that has no active port left.

    Fix: start the subnet manager (opensm, UFM, or the one in the switch), or restart it.

    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/opensm
    """
    waiting = [line for view in views(job) for line in view.lines if _uninitialised(line)]
    yield from _by_node(
        job,
        waiting,
        f"in state {waiting[0].port.state}" if waiting else "",
        "no subnet manager has activated it",
        lambda line: Fix(
            "Start the subnet manager of this fabric: opensm on one node, UFM, or the one in the switch.",
            (f"sminfo -C {quote(line.hca.name)} -P {line.port.number}", "sudo systemctl status opensm"),
        ),
    )


@rule("peers", severity="warning", scope="node", also=("node",), owner="admin")
def ib_rate_degraded(job: Job) -> Iterator[Outcome]:
    """An active InfiniBand or RoCE port is slower than its peers.

    A cable with a bad lane, or one made for a slower generation, brings the link up with fewer lanes or a lower speed.
    All ranks then run at the pace of this port.

    Found by the rate in sysfs: lower than that of the port of the same name and board on most other nodes, lower than
    that of the other InfiniBand ports of the same board on its node, or an InfiniBand link with one lane. Nodes with
    different boards are not compared.

    Fix: reseat or replace the cable; look at ``mlxlink -d mlx5_0``.

    See: https://docs.nvidia.com/networking/display/mftv4310/mlxlink+utility
    """
    slow: dict[str, tuple[FabricPort, str]] = {}

    def note(line: FabricPort, expected: str) -> None:
        slow.setdefault(f"{line.node.key} {line.name}", (line, expected))

    rates: defaultdict[str, set[float | None]] = defaultdict(set)
    for line in (line for view in views(job) for line in view.lines if line.active):
        rates[line.name].add(line.port.rate_Gbps)
    for name, lines in by_name(job).items() if any(len(those) > 1 for those in rates.values()) else ():
        for group in _of_boards([line for line in lines if line.active]):
            for line, usual in _slower(group):
                note(line, f"{name} has {usual:g} Gb/s on the other nodes")
    for view in views(job):
        ports = [line for line in view.lines if line.active and line.port.link_layer == "InfiniBand" and line.hca.board]
        for group in _of_boards(ports):
            for line, usual in _slower(group) if len(group) >= _SIBLINGS else ():
                note(line, f"the other ports of its board have {usual:g} Gb/s")
        for line in ports:
            if line.port.lanes == _ONE_LANE and line.hca.driver.startswith(_VENDOR):
                note(line, "expected 4 lanes")
    for expected, items in grouped(slow.values(), lambda item: item[1]).items():
        group = [line for line, _ in items]
        first = group[0]
        yield found(
            job,
            ranks_of(job, group),
            f"{where(group)} {are(group)} at {first.port.rate_Gbps or 0:g} Gb/s ({first.port.lanes}X "
            f"{first.port.speed}); {expected}",
            Fix(
                "Reseat or replace the cable; check that cable, switch port and adapter support the expected speed.",
                (f"sudo mlxlink -d {quote(first.hca.name)} -m -e -c", f"ibstat {quote(first.hca.name)}"),
            ),
            evidence=shown(group),
        )


def _of_boards(lines: Sequence[FabricPort]) -> Iterable[Sequence[FabricPort]]:
    """Return ports by their adapter's board; none if all have the same rate, so that none can be slower than others."""
    if len({line.port.rate_Gbps for line in lines}) < 2:
        return ()
    return grouped(lines, lambda line: line.hca.board).values()


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


@rule("peers", severity="warning", scope="node", also=("node",), owner="admin")
def ib_sriov_vf_guid(job: Job) -> Iterator[Outcome]:
    """An InfiniBand virtual function has no GUID, so the subnet manager cannot configure it.

    Virtual functions start with GUIDs of zeros. Until the hypervisor assigns one, the port gets no LID, and NCCL fails
    or falls back to TCP sockets.

    Found where the node_guid of an NVIDIA adapter is all zeros on InfiniBand.

    Fix: on the hypervisor assign node and port GUIDs to the virtual function, then bind it again.

    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/Single+Root+IO+Virtualization+(SR-IOV)
    """
    lines = [line for view in views(job) for line in view.lines if _without_guid(line)]
    if lines:
        yield found(
            job,
            ranks_of(job, lines),
            f"{where(lines)} {'has' if len(lines) == 1 else 'have'} no GUID; expected one from the hypervisor",
            Fix(
                "On the hypervisor assign node and port GUIDs to the virtual function and bind it again.",
                (f"cat /sys/class/infiniband/{quote(lines[0].hca.name)}/node_guid", "ip link show"),
            ),
            evidence=shown(lines),
        )
