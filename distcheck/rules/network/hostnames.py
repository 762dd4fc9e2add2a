"""Rules about the nodes' own names and addresses: where a name leads, who else has it, and of which family they are."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from distcheck.facts import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import is_here
from distcheck.rules.network.attempts import address_of, at_master_door
from distcheck.rules.network.interface_cases import Case, cases, told, weighed
from distcheck.rules.network.interface_choices import LIBRARIES, milder, severity
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import brief, found, grouped, listed, named
from distcheck.selection.interfaces import FAMILIES, FAMILY, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts import Job, NodeFacts, RankFacts
    from distcheck.rules.network.interface_choices import Choice
    from distcheck.rules.network.selected_interfaces import Survey

_SLOWER = 4
"""By how much a link must be slower than the one to rank 0 to be called the wrong one."""


@rule("peers")
def net_hostname_loopback(job: Job) -> Iterator[Outcome]:
    """The node's own host name leads to its loopback, or nowhere, and Gloo listens there.

    ``Unable to resolve hostname to a (local) address. Using the loopback address as fallback``, then ``connectFullMesh
    failed ... Connection refused, remote=[127.0.0.1]``. Debian and Ubuntu map the own name to 127.0.1.1 in /etc/hosts.
    Of two addresses Gloo lets the lower one listen, so that one such node in a network of lower addresses (10.x) works
    by luck, and fails in one of higher addresses (192.168.x), or as soon as a second node is like it.

    Found by resolving the own name on every node and binding its addresses. An error where Gloo is used and another
    node would connect to the loopback address; a warning where it works by luck; with NCCL a remark.

    Fix: ``export GLOO_SOCKET_IFNAME=eth0``, or map the name to the node's own address in /etc/hosts.
    See: https://github.com/pytorch/gloo/issues/223
    """
    seen = survey(job)
    here = [c for c in cases(seen, "gloo", "here") if not c.choice.gloo_names and is_here(c.interfaces[0].address)]
    highest = {length: _highest(seen, length) for length in {len(_packed(c.interfaces[0].address)) for c in here}}
    here = [
        c
        if _is_sought(c, highest[len(_packed(c.interfaces[0].address))])
        else c._replace(severity=milder(c.severity, "warning"))
        for c in here
    ]
    for (words, weight), several in grouped(here, lambda c: (_own_name(c.choice), c.severity)).items():
        luck = "; this works only as long as all other nodes have lower addresses" if weight == "warning" else ""
        yield from told(
            seen,
            several,
            "{ranks}: " + words + "; Gloo takes {taken}, which the other nodes cannot reach; expected {way}" + luck,
            "Name the interface of the nodes' network, or map the own name to its address in /etc/hosts or DNS.",
        )


def _is_sought(case: Case, highest: Sequence[tuple[bool, bytes, str]]) -> bool:
    """Whether another node would connect to the loopback address that Gloo takes: of two it is the lower one's.

    Source: pytorch/gloo, gloo/transport/tcp/device.cc (isInitiator).
    """
    other = next((o for o in highest if o[2] != case.choice.node.key), None)
    return other is not None and (other[0] or other[1] >= _packed(case.interfaces[0].address))


def _highest(seen: Survey, length: int) -> list[tuple[bool, bytes, str]]:
    """Return the two nodes whose addresses no loopback address of so many bytes is above, or the nearest to that.

    With each: whether it is a loopback address itself or of the other family, which none is above; its bytes; the node.
    """
    highest: dict[str, tuple[bool, bytes]] = {}
    for choice in seen.choices:
        for interface in choice.taken("gloo")[:1]:
            own = _packed(interface.address)
            new = is_here(interface.address) or len(own) != length, own
            highest[choice.node.key] = max(highest.get(choice.node.key, new), new)
    return nlargest(2, ((*highest[key], key) for key in highest))


def _packed(address: str) -> bytes:
    return packed(address) or b""


def _own_name(choice: Choice) -> str:
    name = choice.network.own_name
    if isinstance(name, Missing):
        words = f"the own host name does not resolve ({brief(name.reason, 60)})"
    elif all(is_here(a) for a in name.addresses):
        words = f"the own host name is {listed(name.addresses)}"
    else:
        words = f"of the own host name's addresses ({listed(name.addresses)}) the first that can be bound is a loopback"
        if isinstance(choice.network.own_name_binds, Missing):
            words = f"the own host name is {listed(name.addresses)}, which the node does not have"
    return words.replace("{", "{{").replace("}", "}}")


@rule("peers")
def net_hostname_wrong_nic(job: Job) -> Iterator[Outcome]:
    """The node's own host name leads to an interface at which the others do not reach it, or to a slow one.

    Gloo listens on the address of that name: a management or storage network, or the bridge of containers. Connections
    time out, or everything is as slow as that network.

    Found by trying that address from other nodes, which reach the node at another one; by the state of its link; and by
    comparing its speed with that of the link to rank 0.

    Fix: ``export GLOO_SOCKET_IFNAME=eth0`` with the interface of the nodes' common network.
    """
    seen = survey(job)
    lost = [
        c
        for c in cases(seen, "gloo", "astray", "here")
        if not c.choice.gloo_names and not is_here(c.interfaces[0].address)
    ]
    yield from told(
        seen,
        [weighed(seen, case) for case in lost],
        "{ranks}: the own host name leads to {taken}, where the other nodes do not reach Gloo; expected {way}",
        "Name the interface of the nodes' network, or map the own name to its address in /etc/hosts or DNS.",
    )
    down = [c for c in cases(seen, "gloo", "down") if not c.choice.gloo_names]
    yield from told(
        seen,
        down,
        "{ranks}: the own host name leads Gloo to {taken}, which is down; expected {way}",
        "See why the interface is down, or name another one.",
    )
    slow = [
        Case(c, "gloo", c.taken("gloo"), "warning")
        for c in (seen.choices if seen.several and severity(job, "gloo", chosen=False) == "error" else ())
        if not c.gloo_names and seen.fault(c, "gloo") == "" and _slower(seen, c)
    ]
    yield from told(
        seen,
        slow,
        "{ranks}: the own host name leads Gloo to {taken}, a slower link than {way}, where the node reaches rank 0",
        "Name the faster interface.",
    )


def _slower(seen: Survey, choice: Choice) -> bool:
    way, links = seen.way(choice), choice.network.links
    if way is None or isinstance(links, Missing):
        return False
    speeds = {link.name: link.speed_Mbps for link in links}
    own, other = speeds.get(choice.taken("gloo")[0].name), speeds.get(way.name)
    return own is not None and other is not None and own * _SLOWER <= other


@rule("peers")
def net_ipv4_ipv6_mixed(job: Job) -> Iterator[Outcome]:
    """Some nodes take IPv4 addresses and others IPv6, or IPv6 is tried in vain first.

    Gloo refuses a pair of both: ``ss1.ss_family == ss2.ss_family``. NCCL connects to whatever it is told, which a node
    without that family cannot. When MASTER_ADDR has an IPv6 address that leads nowhere, torch waits for it before it
    takes the IPv4 one. NCCL_SOCKET_FAMILY knows AF_INET and AF_INET6; any other text is ignored.

    Found by comparing the families of what the nodes take, by the tries to reach MASTER_ADDR, and by reading the
    variable.

    Fix: the same family everywhere: ``export NCCL_SOCKET_FAMILY=AF_INET``, interfaces that have it, an IP address as
    MASTER_ADDR, or the precedence of IPv4 in /etc/gai.conf.
    See: https://github.com/huggingface/accelerate/issues/3568
    """
    seen = survey(job)
    for library in LIBRARIES:
        usual = "AF_INET6" if seen.usual_family[library] else "AF_INET"
        yield from told(
            seen,
            cases(seen, library, "family"),
            "{ranks}: {library} takes {taken}{setting}; other nodes take addresses of the other family",
            "Let all nodes take addresses of one family.",
            commands=(f"export NCCL_SOCKET_FAMILY={usual}",) if library == "nccl" else ("getent ahosts $(hostname)",),
        )
    odd = [(c, c.settings[FAMILY]) for c in seen.choices if c.settings.get(FAMILY, "") not in {"", *FAMILIES}]
    for value, several in grouped(odd, lambda item: item[1]).items():
        ranks = [r for choice, _ in several for r in choice.ranks]
        if severity(job, "nccl", chosen=True) is not None:
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: NCCL ignores NCCL_SOCKET_FAMILY={brief(repr(value), 40)}; "
                "expected AF_INET or AF_INET6",
                Fix("Write the family as NCCL knows it.", ("export NCCL_SOCKET_FAMILY=AF_INET",)),
                severity="warning",
                evidence={"NCCL_SOCKET_FAMILY": value},
            )
    yield from _in_vain(job)


def _in_vain(job: Job) -> Iterator[Outcome]:
    """Yield who was left without an answer at an IPv6 address of MASTER_ADDR and had one at an IPv4 address."""
    waited: list[tuple[str, RankFacts]] = []
    for rank in job.ranks:
        tries = at_master_door(job.process_of(rank))
        dead = [a for a in tries if ":" in a.address and a.outcome == "timeout"]
        if dead and any(":" not in a.address and a.outcome in {"met", "waiting", "agent"} for a in tries):
            waited.append((address_of(dead[0]), rank))
    for where, several in grouped(waited, lambda item: item[0]).items():
        ranks = [rank for _, rank in several]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR leads to {where} first, where no answer comes; by IPv4 it does",
            Fix(
                "Use the IPv4 address as MASTER_ADDR, or prefer IPv4 on these nodes.",
                ("echo 'precedence ::ffff:0:0/96 100' | sudo tee -a /etc/gai.conf",),
            ),
            severity="warning",
            evidence={"address": where},
        )


@rule("peers")
def net_duplicate_hostname(job: Job) -> Iterator[Outcome]:
    """Two machines pass for the same host.

    NCCL tells hosts apart by host name and boot id, or by NCCL_HOSTID alone where it is set. Where these are equal it
    takes two machines for one and their GPUs for neighbours: ``unhandled cuda error`` or ncclSystemError when it opens
    shared memory. Cloned machines and containers without /proc are such.

    Found by comparing these with the boot id and what names the hardware. Equal host names with different boot ids do
    NCCL no harm, and are only mentioned.

    Fix: ``sudo hostnamectl set-hostname node2``, ``unset NCCL_HOSTID``.
    See: https://github.com/NVIDIA/nccl/issues/187
    """
    by_hash: dict[tuple[bool, str, str], dict[str, NodeFacts]] = {}
    for node in job.nodes:
        boot = "" if isinstance(node.boot_id, Missing) else node.boot_id
        ids = {r.environment.get("NCCL_HOSTID") for r in job.ranks_on(node)} or {None}
        for host in ids:
            key = (False, node.hostname, boot) if host is None else (True, host, "")
            by_hash.setdefault(key, {})[node.key] = node
    told_of: set[str] = set()
    for (chosen, name, _), alike in by_hash.items():
        nodes, weight = _machines(list(alike.values())), severity(job, "nccl", chosen=chosen)
        if len(nodes) > 1 and weight is not None:
            told_of |= {node.key for node in nodes}
            ranks = [r for node in alike.values() for r in job.ranks_on(node)]
            what = f"NCCL_HOSTID {brief(name, 60)}" if chosen else f"the host name {name} and the same boot id, or none"
            yield found(
                job,
                ranks,
                f"{named(job, ranks)} have {what}; NCCL takes their {len(nodes)} machines for one",
                Fix(
                    "Give every machine a name of its own.",
                    ("unset NCCL_HOSTID",) if chosen else ("sudo hostnamectl set-hostname node2",),
                ),
                severity=weight,
                scope="job",
                owner="user" if chosen else "admin",
                evidence={"NCCL_HOSTID" if chosen else "host name": name},
            )
    for name, alike_nodes in grouped(job.nodes, lambda n: n.hostname).items():
        nodes = [n for n in _machines(alike_nodes) if n.key not in told_of]
        if len(nodes) > 1:
            ranks = [r for node in nodes for r in job.ranks_on(node)]
            yield found(
                job,
                ranks,
                f"{len(nodes)} machines have the host name {name}; NCCL tells them apart by their boot ids",
                Fix("Give every machine a name of its own.", ("sudo hostnamectl set-hostname node2",)),
                severity="info",
                owner="admin",
                evidence={"host name": name},
            )


def _machines(nodes: list[NodeFacts]) -> list[NodeFacts]:
    """Return nodes that are surely different machines, one of each: by the boot id, or else by the hardware."""
    kept: list[NodeFacts] = []
    for node in nodes:
        if all(_different(node, other) for other in kept):
            kept.append(node)
    return kept


def _different(one: NodeFacts, other: NodeFacts) -> bool:
    boots = {one.boot_id, other.boot_id}
    if not any(isinstance(b, Missing) for b in boots) and len(boots) > 1:
        return True
    ids = [n.network.machine_id if n.network else Missing(reason="not looked at") for n in (one, other)]
    return not any(isinstance(i, Missing) for i in ids) and ids[0] != ids[1]


@rule("peers")
def net_duplicate_ip(job: Job) -> Iterator[Outcome]:
    """Two nodes have the same IP address on the network.

    Connections reach the one or the other, as the switches have last learnt: random time-outs, ``Connection reset``,
    ranks that answer for others. An address given by hand twice, a cloned machine, or two DHCP servers.

    Found by an address on links with different MAC addresses, where a library takes it or it is the way to rank 0; on
    links that the job does not use it is only mentioned. Bridges of containers have the same address on every host and
    are left out.

    Fix: give one of the nodes an address of its own; ``arping -D`` shows who answers for it.
    See: https://github.com/pytorch/pytorch/issues/105782
    """
    seen = survey(job)
    used = {i.address for c in seen.choices for library in LIBRARIES for i in c.taken(library)}
    used |= {address for _, address in seen.reach.doors}
    for address, nodes in seen.shared.items():
        ranks = [r for node in nodes for r in job.ranks_on(node)]
        macs = {node.name: _at(node, address) for node in nodes[:8]}
        yield found(
            job,
            ranks,
            f"{listed([f'{node.name} ({_at(node, address)})' for node in nodes])} have the same address {address}",
            Fix(
                "Give each node an address of its own.",
                (f"sudo arping -D -c 3 -I {_at(nodes[0], address).split()[0]} {address}",),
            ),
            severity="error" if address in used else "info",
            scope="job",
            owner="admin",
            evidence={"address": address, **macs},
        )


def _at(node: NodeFacts, address: str) -> str:
    if node.network is None or isinstance(node.interfaces, Missing) or isinstance(node.network.links, Missing):
        return ""
    name = next(i.name for i in node.interfaces if i.address == address)
    return f"{name} {next(link.mac for link in node.network.links if link.name == name)}"
