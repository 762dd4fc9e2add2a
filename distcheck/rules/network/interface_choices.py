"""What NCCL and Gloo take on each node of a job, by whose choice, and how much a fault of it weighs."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts import Missing
from distcheck.rules.job.addresses import is_here
from distcheck.rules.wording import grouped, once
from distcheck.selection.interfaces import (
    COMM_ID,
    GLOO_IFNAME,
    IFNAME,
    decides,
    gloo,
    items_of,
    nccl,
    packed,
    settings,
    subnet,
)

if TYPE_CHECKING:
    from distcheck.facts import Interface, Job, NetworkFacts, NodeFacts, RankFacts
    from distcheck.rules.finding import Severity

Library = Literal["nccl", "gloo"]
LIBRARIES: tuple[Library, ...] = ("nccl", "gloo")
_VIRTUAL = re.compile(
    r"docker|br-|veth|cni|cbr|flannel|cali|cilium|virbr|vnet|vmnet|vbox|lxc|lxd|podman|kube|tun|tap|tailscale|wg|zt|vxlan"
)
_INSIDE = re.compile(r"usb|enx|idrac|tmfifo")
"""To a service processor, or to the system of a network card itself."""
_QUOTES = re.compile(r"[\"'`]")
_AROUND = " 	\"'`"


class Choice(NamedTuple):
    """What the libraries take for ranks of one node that have the same settings."""

    node: NodeFacts
    network: NetworkFacts
    interfaces: tuple[Interface, ...]
    ranks: list[RankFacts]
    settings: dict[str, str]
    gloo_names: str
    """GLOO_SOCKET_IFNAME, empty where it is not set or not looked at."""
    nccl: tuple[Interface, ...]
    gloo: tuple[Interface, ...] | Missing

    def taken(self, library: Library) -> tuple[Interface, ...]:
        """Return what a library takes; of NCCL the first is the bootstrap's."""
        return self.nccl if library == "nccl" else () if isinstance(self.gloo, Missing) else self.gloo

    def chosen(self, library: Library) -> bool:
        """Whether somebody chose by a variable or a configuration file."""
        return self.variable(library) != ""

    def variable(self, library: Library) -> str:
        """Return the variable by which somebody chose, empty when nobody did."""
        if library == "gloo":
            return GLOO_IFNAME if self.gloo_names else ""
        if COMM_ID in self.settings:
            return COMM_ID
        return IFNAME if decides(self.settings.get(IFNAME)) else ""


def choices(job: Job) -> list[Choice]:
    """Return what is taken on each node whose network was looked at, for each of its groups of ranks."""
    found: list[Choice] = []
    for node in job.nodes:
        if node.network is None or isinstance(node.interfaces, Missing):
            continue
        network, there = node.network, node.interfaces
        alike = grouped(job.ranks_on(node), partial(_wishes, network))
        for (wanted, names), ranks in alike.items():
            found.append(
                Choice(
                    node,
                    network,
                    there,
                    ranks,
                    dict(wanted),
                    names if decides(names) else "",
                    nccl(there, dict(wanted)),
                    gloo(there, {GLOO_IFNAME: names}, network.own_name_binds),
                )
            )
    return found


def _wishes(network: NetworkFacts, rank: RankFacts) -> tuple[tuple[tuple[str, str], ...], str]:
    wanted = settings(rank.environment, network.nccl_files)
    return tuple(wanted.items()), rank.environment.get(GLOO_IFNAME, "")


def over_nodes(job: Job) -> bool:
    """Whether the ranks that are here need a network: they have more than one boot or network namespace."""
    places = {
        node.key
        if isinstance(node.boot_id, Missing) or isinstance(node.network_namespace, Missing)
        else (node.boot_id, node.network_namespace)
        for node in job.nodes
    }
    return len(places) > 1


def severity(job: Job, library: Library, *, chosen: bool) -> Severity | None:
    """Return how much a fault of a library's choice weighs, None when --backend says that it is not used.

    Of a library that the job may use beside the other, torch's default being Gloo for the CPU and NCCL for GPUs, only
    what somebody has chosen is an error; else it is worth a remark.
    """
    asked = job.asked.backend
    if asked != "auto":
        return "error" if asked == library else None
    if chosen or job.made_for == library:
        return "error"
    return "info"


def milder(weight: Severity, bound: Severity) -> Severity:
    """Return the milder one of two severities."""
    order: tuple[Severity, ...] = ("error", "warning", "info")
    return max(weight, bound, key=order.index)


@once
def _subnets(job: Job) -> Counter[str | tuple[str, str]]:
    """Return how many nodes have an address in a subnet, and how many of them have this same address."""
    count: Counter[str | tuple[str, str]] = Counter()
    for node in job.nodes:
        count.update(_homes(node))
    return count


def _homes(node: NodeFacts) -> set[str | tuple[str, str]]:
    homes: set[str | tuple[str, str]] = set()
    for i in () if isinstance(node.interfaces, Missing) else node.interfaces:
        if i.up and (net := subnet(i)) is not None:
            homes |= {net, (net, i.address)}
    return homes


def sharing(job: Job, node: NodeFacts, interface: Interface) -> int:
    """Return how many other nodes have an address of their own in an interface's subnet.

    The bridges of containers have the same subnet everywhere, and the same address: that is nothing shared.
    """
    net = subnet(interface)
    if net is None:
        return 0
    everywhere, own, same = _subnets(job), _homes(node), (net, interface.address)
    return everywhere[net] - everywhere[same] - (net in own and same not in own)


def within(interface: Interface, address: str) -> bool:
    """Whether an address lies in an interface's subnet; no where the subnet is not known."""
    other = interface.__class__("", address, up=True, mtu_bytes=0, prefix_bits=interface.prefix_bits)
    net = subnet(interface)
    return net is not None and subnet(other) == net


def looks_virtual(node: NodeFacts, interface: Interface) -> bool:
    """Whether an interface by its name leads into this very machine or into a tunnel; bonds and VLANs do not."""
    if _INSIDE.match(interface.name) or interface.address.startswith("169.254."):
        return True
    return bool(_VIRTUAL.match(interface.name)) and _kind(node, interface) != "physical"


def link_local(address: str) -> bool:
    """Whether an IPv6 address means something on its own link only."""
    own = packed(address.partition("%")[0]) if ":" in address else None
    return own is not None and len(own) == 16 and own[0] == 0xFE and own[1] & 0xC0 == 0x80


def only_this_host(node: NodeFacts, interface: Interface) -> bool:
    """Whether nobody but this host and its containers can be meant by an interface.

    In a container on Docker's own bridge the interface is named like any other; its network tells, unless it is a
    device.
    """
    if is_here(interface.address) or interface.name.startswith("docker"):
        return True
    docker = interface.address.startswith("172.17.") and interface.prefix_bits in {16, None}
    return docker and _kind(node, interface) != "physical"


def _kind(node: NodeFacts, interface: Interface) -> str:
    links = node.network.links if node.network else None
    if links is None or isinstance(links, Missing):
        return "unknown"
    return next((link.kind for link in links if link.name == interface.name), "unknown")


def meant(value: str) -> str:
    """Return what a value of NCCL_SOCKET_IFNAME most likely means, written as NCCL reads it."""
    text = _QUOTES.sub("", value).strip().removeprefix("!")
    exclude = value.strip(_AROUND).startswith(("^", "!")) or text.startswith("=^")
    exact = "=" in text[:2]
    items = [item for item in re.split(r"[,;\s]+", text) if item]
    if not exclude:
        # Who names what is wanted and then what is not wanted gets the former.
        items = [item for item in items if not item.startswith("^")]
    names = list(dict.fromkeys(item.lstrip("^=!").rstrip("*") for item in items))
    return ("^" if exclude else "") + ("=" if exact else "") + ",".join(name for name in names if name)


def misspelt(value: str) -> str:
    """Say what in a value of NCCL_SOCKET_IFNAME NCCL reads otherwise than its author can have meant, else ''."""
    listed = value.removeprefix("^").removeprefix("=")
    if len(value) == 1:
        return "a value of one character, which NCCL ignores"
    if re.search(r"[\"'`]", value):
        return "a quotation mark, which NCCL takes for a part of the name"
    if re.search(r"\s", value):
        return "a blank, which NCCL takes for a part of the name"
    if "^" in listed or "!" in value:
        return "an exclusion mark within the list; it stands once, as ^, at the very beginning"
    if "=" in listed:
        return "an equals sign within the list; it stands once, at the beginning"
    if re.search(r"[*?;$]", listed):
        return "a character that no interface's name has"
    return "no name at all" if value and not items_of(value) else ""
