"""The interfaces NCCL and Gloo use on each node, what set them, and how severe a fault is."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts.base import Missing
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.wording import grouped, once
from distcheck.selection.interfaces import (
    COMM_ID,
    FAMILY,
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
    from collections.abc import Iterator, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface, Link, NetworkFacts
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Severity

Library = Literal["nccl", "gloo"]
LIBRARIES: tuple[Library, ...] = ("nccl", "gloo")
NAMES: dict[Library, str] = {"nccl": "NCCL", "gloo": "Gloo"}
_VIRTUAL = re.compile(
    r"docker|br-|veth|cni|cbr|flannel|cali|cilium|virbr|vnet|vmnet|vbox|lxc|lxd|podman|kube|tun|tap|tailscale|wg|zt|vxlan"
)
_INSIDE = re.compile(r"usb|enx|idrac|tmfifo")
"""Links to a service processor, or to the system on a network card."""
_QUOTES = re.compile(r"[\"'`]")
_AROUND = " 	\"'`"


class Choice(NamedTuple):
    """The interfaces the libraries use for ranks of one node with the same settings."""

    node: NodeFacts
    network: NetworkFacts
    interfaces: tuple[Interface, ...]
    ranks: list[RankFacts]
    settings: dict[str, str]
    gloo_names: str
    """GLOO_SOCKET_IFNAME, empty where it is unset or Gloo ignores it."""
    nccl: tuple[Interface, ...]
    gloo: tuple[Interface, ...] | Missing

    def taken(self, library: Library) -> tuple[Interface, ...]:
        """Return the interfaces a library uses; NCCL's bootstrap uses the first."""
        return self.nccl if library == "nccl" else () if isinstance(self.gloo, Missing) else self.gloo

    def chosen(self, library: Library) -> bool:
        """Whether a variable or a configuration file made the choice."""
        return self.variable(library) != ""

    def variable(self, library: Library) -> str:
        """Return the variable that made the choice, '' when none did."""
        if library == "gloo":
            return GLOO_IFNAME if self.gloo_names else ""
        if COMM_ID in self.settings:
            return COMM_ID
        return IFNAME if decides(self.settings.get(IFNAME)) else ""


def choices(job: Job) -> Iterator[Choice]:
    """Yield the choices on each node with network facts, one for each group of ranks."""
    alike = len(ranks_by(job, _variables)) == 1  # one rank then speaks for all on nodes with the same files
    files: Mapping[str, str] | None = None
    for node in job.nodes:
        if node.network is None or isinstance(node.interfaces, Missing):
            continue
        network, there = node.network, node.interfaces
        here = job.ranks_on(node)
        if not here:
            continue
        if not alike or network.nccl_files != files:
            files, wishes = network.nccl_files, grouped(here[:1] if alike else here, partial(_wishes, network))
        for (wanted, names), ranks in wishes.items():
            yield Choice(
                node,
                network,
                there,
                list(here) if alike else ranks,
                set_to := dict(wanted),
                names if decides(names) else "",
                nccl(there, set_to),
                gloo(there, {GLOO_IFNAME: names}, network.own_name_binds),
            )


def _variables(rank: RankFacts) -> tuple[str | None, ...]:
    return tuple(map(rank.environment.get, (IFNAME, FAMILY, COMM_ID, GLOO_IFNAME)))


def _wishes(network: NetworkFacts, rank: RankFacts) -> tuple[tuple[tuple[str, str], ...], str]:
    wanted = settings(rank.environment, network.nccl_files)
    return tuple(wanted.items()), rank.environment.get(GLOO_IFNAME, "")


def over_nodes(job: Job) -> bool:
    """Whether the present ranks need a network: they span several boots or network namespaces."""
    places = {
        node.key
        if isinstance(node.boot_id, Missing) or isinstance(node.network_namespace, Missing)
        else (node.boot_id, node.network_namespace)
        for node in job.nodes
    }
    return len(places) > 1


def severity(job: Job, library: Library, *, chosen: bool) -> Severity | None:
    """Return the severity of a fault in a library's choice, None if --backend excludes it.

    By default torch uses Gloo for the CPU and NCCL for GPUs. A fault of the library that the job was not made for is an
    error only if a setting made the choice, otherwise info.
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
    """Return how many nodes have an address in a subnet, and how many have the same address."""
    count: Counter[str | tuple[str, str]] = Counter()
    for node in job.nodes:
        count.update(_homes(node))
    return count


def _homes(node: NodeFacts) -> set[str | tuple[str, str]]:
    homes: set[str | tuple[str, str]] = set()
    for i in interfaces_of(node):
        if i.up and (net := subnet(i)) is not None:
            homes |= {net, (net, i.address)}
    return homes


def sharing(job: Job, node: NodeFacts, interface: Interface) -> int:
    """Return how many other nodes have their own address in an interface's subnet.

    Container bridges have the same subnet and the same address on every node, so they are not counted.
    """
    net = subnet(interface)
    if net is None:
        return 0
    everywhere, own, same = _subnets(job), _homes(node), (net, interface.address)
    return everywhere[net] - everywhere[same] - (net in own and same not in own)


def within(interface: Interface, address: str) -> bool:
    """Whether an address lies in an interface's subnet; False if the subnet is unknown."""
    other = interface.__class__("", address, up=True, mtu_bytes=0, prefix_bits=interface.prefix_bits)
    net = subnet(interface)
    return net is not None and subnet(other) == net


def interfaces_of(node: NodeFacts) -> tuple[Interface, ...]:
    """Return a node's interfaces, none if they could not be listed."""
    return () if isinstance(node.interfaces, Missing) else node.interfaces


def link_of(node: NodeFacts, name: str) -> Link | None:
    """Return the link of a node with this name, None if unknown."""
    links = node.network.links if node.network and isinstance(node.network.links, tuple) else ()
    return next((link for link in links if link.name == name), None)


def outside(interface: Interface) -> bool:
    """Whether other nodes may reach an interface: it is up, and its address neither loopback nor link-local."""
    return interface.up and not is_here(interface.address) and not link_local(interface.address)


def looks_virtual(node: NodeFacts, interface: Interface) -> bool:
    """Whether an interface looks internal to the machine or like a tunnel; not bonds or VLANs."""
    if _INSIDE.match(interface.name) or interface.address.startswith("169.254."):
        return True
    return bool(_VIRTUAL.match(interface.name)) and _kind(node, interface) != "physical"


def link_local(address: str) -> bool:
    """Whether an IPv6 address is link-local."""
    own = packed(address.partition("%")[0]) if ":" in address else None
    return own is not None and len(own) == 16 and own[0] == 0xFE and own[1] & 0xC0 == 0x80


def only_this_host(node: NodeFacts, interface: Interface) -> bool:
    """Whether only this host and its containers can be reached through an interface.

    In a container on Docker's own bridge the interface has an ordinary name. Its subnet identifies it, unless it is a
    physical device.
    """
    if is_here(interface.address) or interface.name.startswith("docker"):
        return True
    docker = interface.address.startswith("172.17.") and interface.prefix_bits in {16, None}
    return docker and _kind(node, interface) != "physical"


def _kind(node: NodeFacts, interface: Interface) -> str:
    link = link_of(node, interface.name)
    return link.kind if link else "unknown"


def meant(value: str) -> str:
    """Return the likely intent of an NCCL_SOCKET_IFNAME value, in NCCL's syntax."""
    text = _QUOTES.sub("", value).strip().removeprefix("!")
    exclude = value.strip(_AROUND).startswith(("^", "!")) or text.startswith("=^")
    exact = "=" in text[:2]
    items = [item for item in re.split(r"[,;\s]+", text) if item]
    if not exclude:
        # In a mix of included and excluded names, keep the included ones.
        items = [item for item in items if not item.startswith("^")]
    names = list(dict.fromkeys(item.lstrip("^=!").rstrip("*") for item in items))
    return ("^" if exclude else "") + ("=" if exact else "") + ",".join(name for name in names if name)


@lru_cache(256)
def misspelt(value: str) -> str:
    """Return the syntax error in an NCCL_SOCKET_IFNAME value, '' if there is none."""
    listed = value.removeprefix("^").removeprefix("=")
    if len(value) == 1:
        return "a value of one character, which NCCL ignores"
    if re.search(r"[\"'`]", value):
        return "a quotation mark, which NCCL reads as part of the name"
    if re.search(r"\s", value):
        return "a space, which NCCL reads as part of the name"
    if "^" in listed or "!" in value:
        return "an exclusion mark within the list; write it once, as ^, at the start"
    if "=" in listed:
        return "an equals sign within the list; write it once, at the start"
    if re.search(r"[*?;$]", listed):
        return "a character that is not valid in interface names"
    return "no interface name" if value and not items_of(value) else ""
