"""Rules about host names and addresses: resolution, duplicates and address families."""

from __future__ import annotations

from heapq import nlargest
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.addresses import is_here, master_outcomes
from distcheck.rules.job.kinds import kinds
from distcheck.rules.job.nccl_remedies import owner, removals
from distcheck.rules.network.attempts import address_of, master_attempts
from distcheck.rules.network.interface_cases import FaultyChoice, each_case, each_choice
from distcheck.rules.network.interface_choices import LIBRARIES, Choice, interfaces_of, link_of, severity
from distcheck.rules.network.machines import HOSTID, machines, nccl_hosts
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import brief, found, listed, named, once
from distcheck.selection.interfaces import FAMILIES, FAMILY, packed
from distcheck.selection.nccl_settings import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts


@rule("peers", scope="rank", of=each_case)
def net_hostname_loopback(job: Job, case: FaultyChoice) -> Answer:
    """A node's host name resolves to its loopback or not at all, so Gloo listens there.

    Gloo logs ``Unable to resolve hostname to a (local) address. Using the loopback address as fallback``, then fails
    with ``connectFullMesh failed ... Connection refused, remote=[127.0.0.1]``. Debian and Ubuntu map a host's own name
    to 127.0.1.1 in /etc/hosts. Of two addresses Gloo lets the lower one listen. So one such node works by chance in a
    network of lower addresses (10.x), and fails with higher addresses (192.168.x) or with a second such node.

    Found by resolving the host name on every node and binding its addresses. It is an error where Gloo is used and
    another node would connect to the loopback address, a warning where it works by chance, and info with NCCL.

    Fix: Name the interface of the nodes' network, or map the host name to its address in /etc/hosts or DNS.

        {use|export GLOO_SOCKET_IFNAME=INTERFACE}

    See: https://github.com/pytorch/gloo/issues/223
    """
    if (case.library, case.flaw) != ("gloo", "here") or case.by_hand or not is_here(case.interfaces[0].address):
        return None
    sought = case.severity != "error" or _is_sought(job, case)
    chance = "" if sought else "; this works only as long as all other nodes have lower addresses"
    words = f"{_own_name(case.choice)}; {case.uses}, which the other nodes cannot reach; expected {case.way}{chance}"
    return Fault(words, severity="error" if sought else "warning")


def _is_sought(job: Job, case: FaultyChoice) -> bool:
    """Whether another node would connect to the loopback address that Gloo uses.

    Of two nodes the one with the lower address listens. Source: pytorch/gloo, gloo/transport/tcp/device.cc
    (isInitiator).
    """
    own = packed(case.interfaces[0].address) or b""
    other = next((o for o in _highest(job).get(len(own), ()) if o[2] != case.choice.node.key), None)
    return other is not None and (other[0] or other[1] >= own)


@once
def _highest(job: Job) -> dict[int, list[tuple[bool, bytes, str]]]:
    """Return the two nodes with the highest addresses, for loopbacks of 4 and of 16 bytes.

    Each is (is above every such loopback, address bytes, node key). Loopback addresses themselves and addresses of the
    other family count as above.
    """
    found = {}
    for length in (4, 16):
        highest: dict[str, tuple[bool, bytes]] = {}
        for choice in survey(job).choices:
            for interface in choice.taken("gloo")[:1]:
                own = packed(interface.address) or b""
                new = is_here(interface.address) or len(own) != length, own
                highest[choice.node.key] = max(highest.get(choice.node.key, new), new)
        found[length] = nlargest(2, ((*highest[key], key) for key in highest))
    return found


def _own_name(choice: Choice) -> str:
    """Return what is wrong with a node's own host name."""
    name = choice.network.own_name
    if isinstance(name, Missing):
        return f"the node's host name does not resolve ({brief(name.reason, 60)})"
    cause = f"the node's host name resolves to {listed(name.addresses)}"
    if all(is_here(a) for a in name.addresses):
        return cause
    if isinstance(choice.network.own_name_binds, Missing):
        return f"{cause}, which the node does not have"
    return f"{cause}; the first bindable one is a loopback"


@rule("peers", scope="rank", of=each_case)
def net_hostname_wrong_nic(_: Job, case: FaultyChoice) -> Answer:
    """A node's host name resolves to an interface that is unreachable, down or slow.

    Gloo listens on the address of that name: a management or storage network, or a container bridge. Connections time
    out, or all traffic is as slow as that network.

    Found by trying that address from other nodes, which reach the node at another one; by the state of its link; and by
    comparing its speed with that of the link to rank 0.

    Fix: Name the interface of the nodes' network, or map the host name to its address in /etc/hosts or DNS.

        {use|export GLOO_SOCKET_IFNAME=INTERFACE}
    """
    if case.library != "gloo" or case.by_hand:
        return None
    name = "the node's host name"
    if case.flaw == "slow":
        words = f"{name} makes Gloo use {case.taken}, a slower link than {case.way}, the path to rank 0"
        return Fault(words, severity="warning")
    if case.flaw == "down":
        return f"{name} resolves to {case.taken}, which Gloo uses and which is down; expected {case.way}"
    if case.flaw in {"unreachable", "here"} and not is_here(case.interfaces[0].address):
        words = f"{name} resolves to {case.taken}, where the other nodes do not reach Gloo; expected {case.way}"
        return Fault(words, severity="warning" if case.unproven else "error")
    return None


@rule("peers", scope="rank")
def net_ipv4_ipv6_mixed(job: Job) -> Iterator[Outcome]:
    """Some nodes use IPv4 addresses and others IPv6, or IPv6 is tried first and fails.

    Gloo rejects a pair of both: ``ss1.ss_family == ss2.ss_family``. NCCL connects to any address it receives, which
    fails on a node without that family. When MASTER_ADDR has an unreachable IPv6 address, torch waits for it before it
    uses the IPv4 one. NCCL_SOCKET_FAMILY accepts AF_INET and AF_INET6; NCCL ignores any other value.

    Found by comparing the address families that the nodes use, by the attempts to reach MASTER_ADDR, and by reading the
    variable.

    Fix: use the same family everywhere: ``export NCCL_SOCKET_FAMILY=AF_INET``, interfaces that have it, an IP address
    as MASTER_ADDR, or the precedence of IPv4 in /etc/gai.conf.
    See: https://github.com/huggingface/accelerate/issues/3568
    """
    yield from each_case(job, _of_other_family)
    yield from each_choice(job, _ignored_family)
    yield from _in_vain(job)


def _of_other_family(case: FaultyChoice) -> Fault | None:
    if case.flaw != "family":
        return None
    usual = "AF_INET6" if case.seen.usual_family[case.library] else "AF_INET"
    look = f"export NCCL_SOCKET_FAMILY={usual}" if case.library == "nccl" else "getent ahosts $(hostname)"
    words = f"{case.uses}; other nodes use addresses of the other family"
    return Fault(words, Fix("Make all nodes use addresses of one family.", (look,)))


def _ignored_family(choice: Choice) -> Fault | None:
    value = choice.settings.get(FAMILY, "")
    if value in {"", *FAMILIES}:
        return None
    return Fault(
        f"NCCL ignores NCCL_SOCKET_FAMILY={brief(repr(value), 40)}; expected AF_INET or AF_INET6",
        Fix("Set a family that NCCL accepts.", ("export NCCL_SOCKET_FAMILY=AF_INET",)),
        severity="warning",
        evidence={"NCCL_SOCKET_FAMILY": value},
    )


def _in_vain(job: Job) -> Iterator[Outcome]:
    """Yield the ranks that got an answer at MASTER_ADDR at its IPv4 address only."""
    if "timeout" not in master_outcomes(job):
        return
    waited: dict[str, list[RankFacts]] = {}
    for rank in job.ranks:
        tries = master_attempts(job.process_of(rank))
        dead = next((a for a in tries if ":" in a.address and a.outcome == "timeout"), None)
        if dead and any(":" not in a.address and a.outcome in {"met", "waiting", "agent"} for a in tries):
            waited.setdefault(address_of(dead), []).append(rank)
    for where, ranks in waited.items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR resolves to {where} first, which does not answer; its IPv4 address does",
            Fix(
                "Set MASTER_ADDR to the IPv4 address, or prefer IPv4 on these nodes.",
                ("echo 'precedence ::ffff:0:0/96 100' | sudo tee -a /etc/gai.conf",),
            ),
            severity="warning",
            evidence={"address": where},
        )


@rule("peers")
def net_duplicate_hostname(job: Job) -> Iterator[Outcome]:
    """NCCL identifies two machines as the same host.

    NCCL identifies a host by host name and boot id, or by NCCL_HOSTID alone where it is set. If these are equal, it
    treats the GPUs of two machines as local to each other and fails with ``unhandled cuda error`` or ncclSystemError
    when it opens shared memory. Typical causes are cloned machines and containers without /proc.

    Found by comparing these with the boot id and the hardware id. Equal host names with different boot ids do no harm
    to NCCL.

    Fix: Give every machine its own name; remove NCCL_HOSTID.

        {rename|sudo hostnamectl set-hostname NAME  # on NODE}

    See: https://github.com/NVIDIA/nccl/issues/187
    """
    for (chosen, name, _), alike in nccl_hosts(job).items():
        nodes = machines(alike) if len(alike) > 1 else []
        weight = severity(job, "nccl", chosen=chosen)
        if len(nodes) < 2 or weight is None:
            continue
        ranks = job.ranks_on(*alike)
        same = [k.first for k in kinds(job) if value_of(job, k.first, HOSTID) == name] if chosen else []
        what = f"{HOSTID} {brief(name, 60)}" if chosen else f"the host name {name} and the same or no boot id"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} have {what}; NCCL treats their {len(nodes)} machines as one",
            severity=weight,
            owner=owner(job, same, HOSTID) if chosen else "admin",
            evidence={HOSTID if chosen else "host name": name},
            values={"rename": removals(job, same, HOSTID) if chosen else _rename(nodes)},
        )


@rule("peers", owner="admin")
def net_duplicate_ip(job: Job) -> Iterator[Outcome]:
    """Two nodes have the same IP address on the network.

    Connections reach one node or the other, as the switches last learned: random timeouts, ``Connection reset``, ranks
    that answer for others. Typical causes are an address assigned twice by hand, a cloned machine, or two DHCP servers.

    Found by one address on links with different MAC addresses. It is an error where a library uses the address or it is
    the path to rank 0, and info on links that the job does not use. Container bridges have the same address on every
    host and are left out.

    Fix: Give each node its own address; arping shows which machine answers for it.

        sudo arping -D -c 3 -I {interface} {address}

    See: https://github.com/pytorch/pytorch/issues/105782
    """
    seen = survey(job)
    used = {i.address for c in seen.choices for library in LIBRARIES for i in c.taken(library)}
    used |= {address for _, address in seen.reach.to_rank_0}
    for address, nodes in seen.shared.items():
        ranks = job.ranks_on(*nodes)
        macs = {node.name: _at(node, address) for node in nodes[:8]}
        yield found(
            job,
            ranks,
            f"{listed([f'{node.name} ({_at(node, address)})' for node in nodes])} have the same address {address}",
            severity="error" if address in used else "info",
            evidence={"address": address, **macs},
            values={"interface": [quote(_at(nodes[0], address).partition(" ")[0])], "address": [quote(address)]},
        )


def _rename(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return the commands that give machines the names by which the scheduler knows them, if these differ."""
    names = dict.fromkeys(node.name for node in nodes[:8] if node.name != node.hostname)
    return tuple(f"sudo hostnamectl set-hostname {quote(name)}  # on {name}" for name in names) or ("hostnamectl",)


def _at(node: NodeFacts, address: str) -> str:
    name = next((i.name for i in interfaces_of(node) if i.address == address), "")
    link = link_of(node, name)
    return f"{name} {link.mac}" if link else name
