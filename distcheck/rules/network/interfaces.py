"""Rules about the network interfaces that NCCL and Gloo use on each node."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.network.interface_cases import (
    case_findings,
    cases,
    cure_of_syntax,
    fix_commands,
    shown,
    weighed,
    whence,
)
from distcheck.rules.network.interface_choices import (
    LIBRARIES,
    Choice,
    milder,
    misspelt,
    severity,
)
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import brief, found, grouped, listed, named
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, decides, items_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("peers", scope="rank")
def net_nccl_ifname_syntax(job: Job) -> Iterator[Outcome]:
    """NCCL_SOCKET_IFNAME has a syntax error.

    NCCL does not report it: it uses other interfaces than intended, or none (``Bootstrap : no socket interface
    found``). ``^`` (all but these) and ``=`` (whole names) are written once, at the start and in this order. NCCL reads
    spaces, quotation marks and any later ``^`` or ``=`` as part of the names, and ignores a value of one character.

    Found by parsing the value as NCCL does, and comparing the interfaces it selects with the likely intent of the
    value. It is an error where NCCL finds no interface, or starts with one at which the other nodes do not reach it.

    Fix: ``export NCCL_SOCKET_IFNAME==eth0,eth1`` for exactly these, ``export NCCL_SOCKET_IFNAME=^docker,lo`` for all
    but those.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    ill = [c for c in seen.choices if misspelt(c.settings.get(IFNAME, ""))]
    weight = severity(job, "nccl", chosen=True)
    alike = grouped(ill, lambda c: (c.settings[IFNAME], tuple(i.name for i in c.nccl), *cure_of_syntax(seen, c)))
    if weight is None:
        return
    for (value, taken, cure, harm), choices in alike.items():
        ranks = [r for choice in choices for r in choice.ranks]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: NCCL_SOCKET_IFNAME is {brief(repr(value), 60)}{whence(choices[0], IFNAME)}, with "
            f"{misspelt(value)}; "
            + (f"NCCL uses {listed(taken)}" if taken else "NCCL finds no interface")
            + (f", but the other nodes do not reach {taken[0]}" if taken and harm == "error" else ""),
            Fix("Write ^ or = once at the start, then the names, separated only by commas.", cure),
            severity=milder(weight, harm),
            evidence={"NCCL_SOCKET_IFNAME": value, "taken": list(taken)},
        )


@rule("peers", scope="rank")
def net_nccl_ifname_no_match(job: Job) -> Iterator[Outcome]:
    """NCCL's settings match no network interface.

    NCCL fails with ``Bootstrap : no socket interface found`` and ncclInvalidUsage, even on one node: if
    NCCL_SOCKET_IFNAME matches nothing, NCCL does not fall back to another interface. Typical causes are a typo, the
    interface name of another node, an interface that is down, or NCCL_SOCKET_FAMILY without an address of that family.

    Found by selecting as NCCL does, from the interfaces that are running and have an address.

    Fix: set the name of an interface of that node, or ``unset NCCL_SOCKET_IFNAME``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    for node in job.nodes:
        if node.network is not None and isinstance(node.interfaces, Missing):
            reason = f"the interfaces of {node.name} could not be listed: {node.interfaces.reason}"
            yield NotChecked(nodes=(node.name,), reason=reason)
    nothing = [(c, _nothing_left(c)) for c, fault in seen.faulty("nccl") if fault == "nothing"]
    for (problem, cure), several in grouped(
        nothing, lambda item: (item[1], fix_commands(seen, item[0], "nccl"))
    ).items():
        choice, ranks = several[0][0], [r for c, _ in several for r in c.ranks]
        weight = severity(job, "nccl", chosen=bool(choice.settings))
        if weight is not None:
            there = {c.node.name: shown(i for i in c.interfaces if i.up) for c, _ in several[:8]}
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {problem}; {choice.node.name} has {brief(there[choice.node.name], 100)}",
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
        return f"NCCL_COMM_ID is {place}, but no interface is in its subnet"
    if not decides(value):
        return f"NCCL finds no running interface with {address}"
    down = sorted({i.name for i in choice.interfaces if not i.up and i.name in items_of(value)})
    state = f" ({listed(down)} {'is' if len(down) == 1 else 'are'} down)" if down else ""
    return (
        f"NCCL_SOCKET_IFNAME is {brief(value, 60)}{whence(choice, IFNAME)}, which matches no running interface with "
        f"{address}{state}"
    )


@rule("peers", severity="info", scope="rank")
def net_nccl_ifname_prefix_trap(job: Job) -> Iterator[Outcome]:
    """A name in NCCL_SOCKET_IFNAME is also a prefix of other interface names.

    ``eth1`` also matches eth10, and ``ib0`` also ib0.8001: NCCL matches prefixes unless the value starts with ``=``.
    The bootstrap uses the first match, the socket transport all of them.

    Found where one interface has exactly the given name, and the names of others, which NCCL uses, begin with it.

    Fix: ``export NCCL_SOCKET_IFNAME==eth1``.
    """
    trapped: list[tuple[Choice, str, tuple[str, ...]]] = []
    for choice in survey(job).choices:
        value = choice.settings.get(IFNAME, "")
        if not decides(value) or value.removeprefix("^").startswith("=") or misspelt(value):
            continue
        items = items_of(value)
        taken = choice.interfaces if value.startswith("^") else choice.nccl
        longer = [i.name for i in taken if i.name.startswith(items) and i.name not in items]
        there = {i.name for i in choice.interfaces} if longer else set()
        others = [n for item in items if item in there for n in longer if n.startswith(item) and n[len(item)] != ":"]
        if others:
            trapped.append((choice, value, tuple(dict.fromkeys(others))))
    for (value, more), several in grouped(trapped, lambda item: item[1:]).items():
        ranks = [r for choice, _, _ in several for r in choice.ranks]
        exact = f"^={value[1:]}" if value.startswith("^") else f"={value}"
        verb = "excludes" if value.startswith("^") else "matches"
        if severity(job, "nccl", chosen=True) is not None:
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: NCCL_SOCKET_IFNAME {brief(value, 60)} also {verb} {listed(list(more))}",
                Fix("Match whole names.", (f"export NCCL_SOCKET_IFNAME={quote(exact)}",)),
                evidence={"NCCL_SOCKET_IFNAME": value, "also": list(more)},
            )


@rule("peers", scope="rank")
def net_nccl_picks_loopback_or_docker(job: Job) -> Iterator[Outcome]:
    """NCCL listens on the loopback or Docker's bridge, and the job has several nodes.

    Only processes of the same host can reach it there. NCCL fails with ``Call to connect returned Connection refused``
    and 127.0.0.1 or 172.17.0.1, because the other nodes connect to themselves. Either NCCL_SOCKET_IFNAME=lo is left
    over from a job on one node, or a container has only Docker's own interface.

    Found by selecting as NCCL does; silent when another node reached the address.

    Fix: unset the variable, or name the interface of the nodes' network; ``docker run --network=host``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    seen = survey(job)
    yield from case_findings(
        seen,
        cases(seen, "nccl", "here"),
        "{ranks}: NCCL uses {taken}{setting}, which the other nodes cannot reach; expected {way}",
        "Make NCCL use the interface of the nodes' network; in a container use the host network.",
    )


@rule("peers", scope="rank")
def net_nccl_auto_wrong_iface(job: Job) -> Iterator[Outcome]:
    """NCCL selects a network interface at which the other nodes do not reach it.

    Without NCCL_SOCKET_IFNAME it uses the first running interface that is not docker*, lo* or virbr*, and prefers ib*.
    Container bridges (br-…, cni0), tunnels and unconnected network cards pass this test. The job then hangs at its
    start, with ``Bootstrap : Using br-…`` in NCCL's log. The socket transport also uses the further interfaces.

    Found by selecting as NCCL does and trying the address from other nodes, which reach the node at another address. It
    is a warning where no node could try, the name is that of a bridge or a tunnel, and no other node has an address in
    its network.

    Fix: ``export NCCL_SOCKET_IFNAME==eth0`` with the interface of the nodes' common network.
    See: https://github.com/NVIDIA/nccl/issues/913
    """
    seen = survey(job)
    found_here = [c for c in cases(seen, "nccl", "astray") if not c.choice.variable("nccl")]
    yield from case_findings(
        seen,
        [weighed(seen, case) for case in found_here],
        "{ranks}: NCCL selects {taken}, where the other nodes do not reach it; expected {way}",
        "Name the interface of the nodes' common network.",
    )


@rule("peers", scope="rank")
def net_gloo_ifname_wrong(job: Job) -> Iterator[Outcome]:
    """GLOO_SOCKET_IFNAME names an unknown interface, one that is down, or only the loopback.

    Gloo fails with ``[enforce fail at .../gloo/transport/tcp/device.cc] ifa != nullptr. Unable to find address for:
    eth``. It needs exact names, separated only by commas. It does not support NCCL's ``^``, ``=`` and name prefixes,
    and every name must exist with an address. With ``lo`` only ranks of the same node can connect. An interface that is
    down keeps its address, and Gloo waits there until the timeout.

    Found by looking each name up as Gloo does, and by the state of its link.

    Fix: ``export GLOO_SOCKET_IFNAME=eth0``, on each node with its own interface name.
    """
    seen = survey(job)
    text = "Set the exact name of the interface in the nodes' network, on each node its own."
    for (reason, _), several in grouped(
        (c for c in cases(seen, "gloo", "nothing") if isinstance(c.choice.gloo, Missing)),
        lambda case: (getattr(case.choice.gloo, "reason", ""), case.choice.gloo_names),
    ).items():
        message = "{ranks}: Gloo fails{setting}: " + brief(reason, 100).replace("{", "{{").replace("}", "}}")
        yield from case_findings(seen, several, message + _gloo_syntax_hint(several[0].choice.gloo_names), text)
    here = [c for c in cases(seen, "gloo", "here") if c.choice.gloo_names]
    yield from case_findings(
        seen,
        here,
        "{ranks}: Gloo uses {taken}{setting}, which the other nodes cannot reach; expected {way}",
        text,
    )
    yield from case_findings(
        seen,
        [c for c in cases(seen, "gloo", "down") if c.choice.gloo_names],
        "{ranks}: Gloo uses {taken}{setting}, which is down; expected {way}",
        "Name an interface that is up, or check why this one is down: cable, driver, network.",
    )


def _gloo_syntax_hint(value: str) -> str:
    """Return what in a GLOO_SOCKET_IFNAME value cannot be part of a name, else ''."""
    if value != "".join(value.split()):
        return "; Gloo reads a space as part of the name"
    return "; Gloo does not support ^ and =" if value.startswith(("^", "=")) else ""


@rule("peers", scope="rank")
def net_ipv6_link_local(job: Job) -> Iterator[Outcome]:
    """NCCL or Gloo uses a link-local IPv6 address.

    Connections fail with ``Connect failed : Network is unreachable``, or EINVAL, and an address that begins with fe80.
    The libraries use an interface even if it has no other address, and a link-local address is valid only on its own
    link.

    Found by selecting as the libraries do; silent when another node reached the address.

    Fix: name an interface with a global address, or ``export NCCL_SOCKET_FAMILY=AF_INET``.
    See: https://github.com/NVIDIA/nccl/issues/529
    """
    seen = survey(job)
    for library in LIBRARIES:
        yield from case_findings(
            seen,
            cases(seen, library, "link-local"),
            "{ranks}: {library} uses {taken}{setting}, a link-local address; expected {way}",
            "Use an interface that has a global address.",
        )
