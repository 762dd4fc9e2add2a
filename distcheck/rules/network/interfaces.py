"""Rules about the network interfaces that NCCL and Gloo use on each node."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked, Severity
from distcheck.rules.network.interface_cases import FaultyChoice, each_case, each_choice, fix_commands, whence
from distcheck.rules.network.interface_choices import Choice, meant, misspelt, only_this_host
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import are, brief, listed
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, decides, items_of, nccl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("peers", scope="rank", of=each_choice)
def net_nccl_ifname_syntax(job: Job, choice: Choice) -> Answer:
    """NCCL_SOCKET_IFNAME has a syntax error.

    NCCL does not report it: it uses other interfaces than intended, or none (``Bootstrap : no socket interface
    found``). ``^`` (all but these) and ``=`` (whole names) are written once, at the start and in this order. NCCL reads
    spaces, quotation marks and any later ``^`` or ``=`` as part of the names, and ignores a value of one character.

    Found by parsing the value as NCCL does, and comparing the interfaces it selects with the likely intent of the
    value. It is an error where NCCL finds no interface, or starts with one at which the other nodes do not reach it.

    Fix: write ``^`` or ``=`` once at the start, then the names, separated only by commas: ``export
    NCCL_SOCKET_IFNAME==eth0,eth1`` for exactly these, ``export NCCL_SOCKET_IFNAME=^docker,lo`` for all but those.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    value, taken = choice.settings.get(IFNAME, ""), [i.name for i in choice.nccl]
    error = misspelt(value)
    if not error:
        return None
    cure, severity = _correction(job, choice)
    uses = f"NCCL uses {listed(taken)}" if taken else "NCCL finds no interface"
    return Fault(
        f"NCCL_SOCKET_IFNAME is {brief(repr(value), 60)}{whence(choice, IFNAME)}, with {error}; {uses}"
        + (f", but the other nodes do not reach {taken[0]}" if taken and severity == "error" else ""),
        Fix("Write ^ or = once at the start, then the names, separated only by commas.", cure),
        severity=severity,
        evidence={"NCCL_SOCKET_IFNAME": value, "taken": taken},
    )


def _correction(job: Job, choice: Choice) -> tuple[tuple[str, ...], Severity]:
    """Return the commands that replace a value with a syntax error, and how severe the error is."""
    seen, value, taken = survey(job), choice.settings[IFNAME], choice.nccl
    wish = meant(value)
    hoped = nccl(choice.interfaces, {**choice.settings, IFNAME: wish}) if items_of(wish) else ()
    if seen.several and hoped and only_this_host(choice.node, hoped[0]):
        hoped = ()  # ^docker, for example, leaves the loopback
    ignored = len(value) == 1
    written = hoped and not ignored
    cure = (f"export NCCL_SOCKET_IFNAME={quote(wish)}",) if written else fix_commands(seen, choice, "nccl")
    if not taken:
        return cure, "error"
    if taken == hoped and not ignored:
        return cure, "info"
    unmet = seen.several and seen.reach.standing(choice.node, taken[0].address) != "met"
    other = (hoped and taken[:1] != hoped[:1]) or only_this_host(choice.node, taken[0])
    return cure, "error" if other and unmet and decides(value) else "warning"


@rule("peers", scope="rank")
def net_nccl_ifname_no_match(job: Job) -> Iterator[Outcome]:
    """NCCL's settings match no network interface.

    NCCL fails with ``Bootstrap : no socket interface found`` and ncclInvalidUsage, even on one node: if
    NCCL_SOCKET_IFNAME matches nothing, NCCL does not fall back to another interface. Typical causes are a typo, the
    interface name of another node, an interface that is down, or NCCL_SOCKET_FAMILY without an address of that family.

    Found by selecting as NCCL does, from the interfaces that are running and have an address.

    Fix: Name an interface of that node that is up, or let NCCL choose.

        {use|unset NCCL_SOCKET_IFNAME}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    for node in job.nodes:
        if node.network is not None and isinstance(node.interfaces, Missing):
            reason = f"the interfaces of {node.name} could not be listed: {node.interfaces.reason}"
            yield NotChecked(nodes=(node.name,), reason=reason)
    yield from each_case(job, _nothing_left)


def _nothing_left(case: FaultyChoice) -> Fault | None:
    if (case.library, case.flaw) != ("nccl", "nothing"):
        return None
    choice = case.choice
    family = choice.settings.get(FAMILY, "")
    address = f"an address of {family}" if family in FAMILIES else "an address"
    value = choice.settings.get(IFNAME, "")
    problem = f"NCCL finds no running interface with {address}"
    if COMM_ID in choice.settings:
        place = brief(repr(choice.settings[COMM_ID]), 60)
        problem = f"NCCL_COMM_ID is {place}, but no interface is in its subnet"
    elif decides(value):
        down = sorted({i.name for i in choice.interfaces if not i.up and i.name in items_of(value)})
        state = f" ({listed(down)} {are(down)} down)" if down else ""
        where = f"{brief(value, 60)}{whence(choice, IFNAME)}"
        problem = f"NCCL_SOCKET_IFNAME is {where}, which matches no running interface with {address}{state}"
    return Fault(f"{problem}; {choice.node.name} has {case.there}")


@rule("peers", scope="rank", of=each_case)
def net_nccl_picks_loopback_or_docker(_: Job, case: FaultyChoice) -> Answer:
    """NCCL listens on the loopback or Docker's bridge, and the job has several nodes.

    Only processes of the same host can reach it there. NCCL fails with ``Call to connect returned Connection refused``
    and 127.0.0.1 or 172.17.0.1, because the other nodes connect to themselves. Either NCCL_SOCKET_IFNAME=lo is left
    over from a job on one node, or a container has only Docker's own interface.

    Found by selecting as NCCL does; silent when another node reached the address.

    Fix: Make NCCL use the interface of the nodes' network; in a container use the host network.

        {use|unset NCCL_SOCKET_IFNAME}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    if (case.library, case.flaw) != ("nccl", "here"):
        return None
    return f"{case.uses}, which the other nodes cannot reach; expected {case.way}"


@rule("peers", scope="rank", of=each_case)
def net_nccl_auto_wrong_iface(_: Job, case: FaultyChoice) -> Answer:
    """NCCL selects a network interface at which the other nodes do not reach it.

    Without NCCL_SOCKET_IFNAME it uses the first running interface that is not docker*, lo* or virbr*, and prefers ib*.
    Container bridges (br-…, cni0), tunnels and unconnected network cards pass this test. The job then hangs at its
    start, with ``Bootstrap : Using br-…`` in NCCL's log. The socket transport also uses the further interfaces.

    Found by selecting as NCCL does and trying the address from other nodes, which reach the node at another address. It
    is a warning where no node could try, the name is that of a bridge or a tunnel, and no other node has an address in
    its network.

    Fix: Name the interface of the nodes' common network.

        {use|export NCCL_SOCKET_IFNAME==INTERFACE}

    See: https://github.com/NVIDIA/nccl/issues/913
    """
    if (case.library, case.flaw) != ("nccl", "unreachable") or case.by_hand:
        return None
    words = f"NCCL selects {case.taken}, where the other nodes do not reach it; expected {case.way}"
    return Fault(words, severity="warning" if case.unproven else "error")


@rule("peers", scope="rank", of=each_case)
def net_gloo_ifname_wrong(_: Job, case: FaultyChoice) -> Answer:
    """GLOO_SOCKET_IFNAME names an unknown interface, one that is down, or only the loopback.

    Gloo fails with ``[enforce fail at .../gloo/transport/tcp/device.cc] ifa != nullptr. Unable to find address for:
    eth``. It needs exact names, separated only by commas. It does not support NCCL's ``^``, ``=`` and name prefixes,
    and every name must exist with an address. With ``lo`` only ranks of the same node can connect. An interface that is
    down keeps its address, and Gloo waits there until the timeout.

    Found by looking each name up as Gloo does, and by the state of its link.

    Fix: Set the exact name of an interface in the nodes' network that is up, on each node its own.

        {use|unset GLOO_SOCKET_IFNAME}
    """
    if case.library != "gloo":
        return None
    why = case.choice.gloo
    if case.flaw == "nothing" and isinstance(why, Missing):
        return f"Gloo fails{case.setting}: {brief(why.reason, 100)}"
    reasons = {"here": "which the other nodes cannot reach", "down": "which is down"}
    return f"{case.uses}, {reasons[case.flaw]}; expected {case.way}" if case.by_hand and case.flaw in reasons else None


@rule("peers", scope="rank", of=each_case)
def net_ipv6_link_local(_: Job, case: FaultyChoice) -> Answer:
    """NCCL or Gloo uses a link-local IPv6 address.

    Connections fail with ``Connect failed : Network is unreachable``, or EINVAL, and an address that begins with fe80.
    The libraries use an interface even if it has no other address, and a link-local address is valid only on its own
    link.

    Found by selecting as the libraries do; silent when another node reached the address.

    Fix: Use an interface that has a global address.

        {use|export NCCL_SOCKET_FAMILY=AF_INET}

    See: https://github.com/NVIDIA/nccl/issues/529
    """
    return f"{case.uses}, a link-local address; expected {case.way}" if case.flaw == "link-local" else None
