"""Rules about the network interfaces that NCCL and Gloo take on each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.network.interface_cases import cases, mend, shown, told, weighed, whence
from distcheck.rules.network.interface_choices import (
    LIBRARIES,
    Choice,
    meant,
    milder,
    misspelt,
    only_this_host,
    severity,
)
from distcheck.rules.network.selected_interfaces import Survey, survey
from distcheck.rules.wording import brief, found, grouped, listed, named
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, decides, items_of, nccl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts import Interface, Job
    from distcheck.rules.finding import Severity


@rule("peers")
def net_nccl_ifname_syntax(job: Job) -> Iterator[Outcome]:
    """NCCL_SOCKET_IFNAME is not written as NCCL reads it.

    NCCL says nothing: it takes other interfaces than were meant, or none (``Bootstrap : no socket interface found``).
    ``^`` (all but these) and ``=`` (whole names) stand once, at the very beginning and in this order; blanks, quotation
    marks and any later ``^`` or ``=`` belong to the names; a value of one character is ignored.

    Found by reading the value as NCCL does, and by comparing what it takes with what the value most likely means: an
    error where NCCL finds nothing, or starts with an interface at which the other nodes do not reach it.

    Fix: ``export NCCL_SOCKET_IFNAME==eth0,eth1`` for exactly these, ``export NCCL_SOCKET_IFNAME=^docker,lo`` for all
    but those.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    ill = [c for c in seen.choices if misspelt(c.settings.get(IFNAME, ""))]
    weight = severity(job, "nccl", chosen=True)
    alike = grouped(ill, lambda c: (c.settings[IFNAME], tuple(i.name for i in c.nccl), *_cure(seen, c)))
    if weight is None:
        return
    for (value, taken, cure, harm), choices in alike.items():
        ranks = [r for choice in choices for r in choice.ranks]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: NCCL_SOCKET_IFNAME is {brief(repr(value), 60)}{whence(choices[0], IFNAME)}, with "
            f"{misspelt(value)}; "
            + (f"NCCL takes {listed(taken)}" if taken else "NCCL finds no interface")
            + (f", and the other nodes do not reach it at {taken[0]}" if taken and harm == "error" else ""),
            Fix("Write ^ or = once at the beginning, then the names with commas and nothing else between them.", cure),
            severity=milder(weight, harm),
            evidence={"NCCL_SOCKET_IFNAME": value, "taken": list(taken)},
        )


def _cure(seen: Survey, choice: Choice) -> tuple[tuple[str, ...], Severity]:
    """Return what to type instead of an ill-written value, and how much harm it does."""
    value = choice.settings[IFNAME]
    wish = meant(value)
    hoped = nccl(choice.interfaces, {**choice.settings, IFNAME: wish}) if items_of(wish) else ()
    if seen.several and hoped and only_this_host(choice.node, hoped[0]):
        hoped = ()  # as ^docker leaves the loopback
    cure = (f"export NCCL_SOCKET_IFNAME={wish}",) if hoped and len(value) > 1 else mend(seen, choice, "nccl")
    return cure, _harm(seen, choice, hoped)


def _harm(seen: Survey, choice: Choice, hoped: tuple[Interface, ...]) -> Severity:
    taken = choice.nccl
    if not taken:
        return "error"
    if len(choice.settings[IFNAME]) > 1 and taken == hoped:
        return "info"
    unmet = seen.several and seen.reach.standing(choice.node, taken[0].address) != "met"
    other = (hoped and taken[:1] != hoped[:1]) or only_this_host(choice.node, taken[0])
    return "error" if other and unmet and decides(choice.settings[IFNAME]) else "warning"


@rule("peers")
def net_nccl_ifname_no_match(job: Job) -> Iterator[Outcome]:
    """NCCL's settings leave it no network interface.

    ``Bootstrap : no socket interface found`` and ncclInvalidUsage, even on one node: a value of NCCL_SOCKET_IFNAME that
    matches nothing is not replaced by another choice. A typing error, the name that another node's interface has, an
    interface that is down, or NCCL_SOCKET_FAMILY without an address of that family.

    Found by choosing as NCCL does, from the interfaces that are running and have an address.

    Fix: the name of an interface of that node, or ``unset NCCL_SOCKET_IFNAME``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    for node in job.nodes:
        if node.network is not None and isinstance(node.interfaces, Missing):
            reason = f"the interfaces of {node.name} could not be listed: {node.interfaces.reason}"
            yield NotChecked(nodes=(node.name,), reason=reason)
    nothing = [(c, _nothing_left(c)) for c in seen.choices if seen.fault(c, "nccl") == "nothing"]
    for (words, cure), several in grouped(nothing, lambda item: (item[1], mend(seen, item[0], "nccl"))).items():
        choice, ranks = several[0][0], [r for c, _ in several for r in c.ranks]
        weight = severity(job, "nccl", chosen=bool(choice.settings))
        if weight is not None:
            there = {c.node.name: shown(i for i in c.interfaces if i.up) for c, _ in several[:8]}
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {words}; {choice.node.name} has {brief(there[choice.node.name], 100)}",
                Fix("Name an interface of that node that is up, or let NCCL choose.", cure),
                severity=weight,
                evidence={**choice.settings, **{f"{name} has": has for name, has in there.items()}},
            )


def _nothing_left(choice: Choice) -> str:
    family = choice.settings.get(FAMILY, "")
    address = f"an address of {family}" if family in FAMILIES else "an address"
    value = choice.settings.get(IFNAME, "")
    if COMM_ID in choice.settings:
        place = brief(repr(choice.settings[COMM_ID]), 60)
        return f"NCCL_COMM_ID is {place}, and no interface lies in its subnet"
    if not decides(value):
        return f"NCCL finds no interface that is running and has {address}"
    down = sorted({i.name for i in choice.interfaces if not i.up and i.name in items_of(value)})
    state = f" ({listed(down)} {'is' if len(down) == 1 else 'are'} down)" if down else ""
    return (
        f"NCCL_SOCKET_IFNAME is {brief(value, 60)}{whence(choice, IFNAME)}, which no interface matches that is running "
        f"and has {address}{state}"
    )


@rule("peers")
def net_nccl_ifname_prefix_trap(job: Job) -> Iterator[Outcome]:
    """A name in NCCL_SOCKET_IFNAME is the beginning of other names as well.

    ``eth1`` stands for eth10 too, and ``ib0`` for ib0.8001: NCCL compares beginnings unless the value starts with
    ``=``. The bootstrap takes the first of them, its socket transport all.

    Found where an interface has exactly the name given, and others begin with it.

    Fix: ``export NCCL_SOCKET_IFNAME==eth1``.
    """
    trapped: list[tuple[Choice, str, tuple[str, ...]]] = []
    for choice in survey(job).choices:
        value = choice.settings.get(IFNAME, "")
        if not decides(value) or value.removeprefix("^").startswith("=") or misspelt(value):
            continue
        names = dict.fromkeys(i.name for i in choice.interfaces)
        others = [n for item in items_of(value) if item in names for n in names if _longer(n, item, items_of(value))]
        if others:
            trapped.append((choice, value, tuple(dict.fromkeys(others))))
    for (value, more), several in grouped(trapped, lambda item: item[1:]).items():
        ranks = [r for choice, _, _ in several for r in choice.ranks]
        exact = f"^={value[1:]}" if value.startswith("^") else f"={value}"
        verb = "leaves out" if value.startswith("^") else "matches"
        if severity(job, "nccl", chosen=True) is not None:
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: NCCL_SOCKET_IFNAME {brief(value, 60)} also {verb} {listed(list(more))}",
                Fix("Ask for whole names.", (f"export NCCL_SOCKET_IFNAME={exact}",)),
                severity="info",
                evidence={"NCCL_SOCKET_IFNAME": value, "also": list(more)},
            )


def _longer(name: str, item: str, items: tuple[str, ...]) -> bool:
    return name.startswith(item) and name not in items and not name.startswith(item + ":")


@rule("peers")
def net_nccl_picks_loopback_or_docker(job: Job) -> Iterator[Outcome]:
    """NCCL listens where only the processes of its own host reach it, and the job has several nodes.

    ``Call to connect returned Connection refused`` with 127.0.0.1 or 172.17.0.1: the other nodes connect to themselves.
    NCCL_SOCKET_IFNAME=lo was left over from a job on one node, or a container has no interface but Docker's own.

    Found by choosing as NCCL does; silent when another node reached the address.

    Fix: unset the variable, or name the interface of the nodes' network; ``docker run --network=host``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    yield from told(
        seen,
        cases(seen, "nccl", "here"),
        "{ranks}: NCCL takes {taken}{setting}, which the other nodes cannot reach; expected {way}",
        "Let NCCL take the interface of the nodes' network; in a container use the host's network.",
    )


@rule("peers")
def net_nccl_auto_wrong_iface(job: Job) -> Iterator[Outcome]:
    """NCCL chooses a network interface by itself at which the other nodes do not reach it.

    It takes the first running one that is not docker*, lo* or virbr*, ib* before others. Bridges of containers
    (br-…, cni0), tunnels and network cards without a network pass this test: the job hangs at its start, with
    ``Bootstrap : Using br-…`` in NCCL's log. Its socket transport takes the further ones too.

    Found by choosing as NCCL does and trying the address from other nodes, which reach the node at another of its
    addresses. A warning where nobody could try, the interface's name is that of a bridge or a tunnel, and no other node
    has an address in its network.

    Fix: ``export NCCL_SOCKET_IFNAME==eth0`` with the interface of the nodes' common network.
    See: https://github.com/NVIDIA/nccl/issues/913
    """
    seen = survey(job)
    found_here = [c for c in cases(seen, "nccl", "astray") if not c.choice.variable("nccl")]
    yield from told(
        seen,
        [weighed(seen, case) for case in found_here],
        "{ranks}: NCCL chooses {taken}, where the other nodes do not reach it; expected {way}",
        "Name the interface of the nodes' common network.",
    )


@rule("peers")
def net_gloo_ifname_wrong(job: Job) -> Iterator[Outcome]:
    """GLOO_SOCKET_IFNAME does not name interfaces of the node, or only its loopback.

    ``[enforce fail at .../gloo/transport/tcp/device.cc] ifa != nullptr. Unable to find address for: eth``. Gloo wants
    exact names, separated by commas alone; NCCL's ``^``, ``=`` and beginnings of names mean nothing to it, and every
    name must be there with an address. With ``lo`` ranks of one node meet, and those of several do not; an interface
    that is down keeps its address, and Gloo waits there in vain.

    Found by looking each name up as Gloo does, and by the state of its link.

    Fix: ``export GLOO_SOCKET_IFNAME=eth0``, on each node the name that its interface has.
    """
    seen = survey(job)
    text = "Name the interface of the nodes' network exactly, on each node as it is called there."
    for (reason, _), several in grouped(
        (c for c in cases(seen, "gloo", "nothing") if isinstance(c.choice.gloo, Missing)),
        lambda case: (getattr(case.choice.gloo, "reason", ""), case.choice.gloo_names),
    ).items():
        words = "{ranks}: Gloo fails{setting}: " + brief(reason, 100).replace("{", "{{").replace("}", "}}")
        yield from told(seen, several, words + _gloo_slip(several[0].choice.gloo_names), text)
    here = [c for c in cases(seen, "gloo", "here") if c.choice.gloo_names]
    yield from told(
        seen,
        here,
        "{ranks}: Gloo takes {taken}{setting}, which the other nodes cannot reach; expected {way}",
        text,
    )
    yield from told(
        seen,
        [c for c in cases(seen, "gloo", "down") if c.choice.gloo_names],
        "{ranks}: Gloo takes {taken}{setting}, which is down; expected {way}",
        "Name an interface that is up, or see why it is down: its cable, its driver, its network.",
    )


def _gloo_slip(value: str) -> str:
    """Say what in a value of GLOO_SOCKET_IFNAME can be no part of a name."""
    if value != "".join(value.split()):
        return "; a blank is a part of the name"
    return "; Gloo knows no ^ and no =" if value.startswith(("^", "=")) else ""


@rule("peers")
def net_subnet_mismatch(job: Job) -> Iterator[Outcome]:
    """Nodes take interfaces in networks that are not connected with each other.

    The ranks meet at MASTER_ADDR, then NCCL or Gloo connects to addresses of another network and times out between some
    pairs. NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names the wrong network, or one node's interface has an address of
    another one.

    Found by comparing the subnets of what is taken, where the trials failed at these addresses and not at others.
    Subnets that are routed are no fault.

    Fix: name the interface of the common network on these nodes, or correct their addresses.
    """
    seen = survey(job)
    for library in LIBRARIES:
        chosen = [c for c in cases(seen, library, "astray") if c.choice.variable(library)]
        yield from told(
            seen,
            [weighed(seen, c) for c in chosen] + cases(seen, library, "apart"),
            "{ranks}: {library} takes {taken}{setting}, in a network that is not the other nodes'; expected {way}",
            "Let all nodes take interfaces of one network.",
        )


@rule("peers")
def net_ipv6_link_local(job: Job) -> Iterator[Outcome]:
    """NCCL or Gloo takes an IPv6 address that is good on its own link only.

    ``Connect failed : Network is unreachable``, or EINVAL, with an address that begins with fe80: an interface
    without any other address is taken all the same, and what the address means depends on the interface from which it
    is used.

    Found by choosing as the libraries do; silent when another node reached the address.

    Fix: name an interface with a global address, or ``export NCCL_SOCKET_FAMILY=AF_INET``.
    See: https://github.com/NVIDIA/nccl/issues/529
    """
    seen = survey(job)
    for library in LIBRARIES:
        yield from told(
            seen,
            cases(seen, library, "link-local"),
            "{ranks}: {library} takes {taken}{setting}, an address that is good on its own link only; expected {way}",
            "Let it take an interface that has a global address.",
        )
