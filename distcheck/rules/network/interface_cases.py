"""Faulty interface choices, and the findings and fix commands for them."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.finding import Fix
from distcheck.rules.job.nccl_remedies import removals
from distcheck.rules.network.interface_choices import meant, milder, only_this_host, severity
from distcheck.rules.wording import brief, found, grouped, listed, named
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, decides, items_of, nccl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from distcheck.facts.network import Interface
    from distcheck.rules.finding import Fault, Owner, Severity
    from distcheck.rules.network.interface_choices import Choice, Library
    from distcheck.rules.network.selected_interfaces import Flaw, Survey

_SHOWN = 8
"""Nodes shown in a finding's evidence."""


class FaultyChoice(NamedTuple):
    """A faulty choice and its severity."""

    choice: Choice
    library: Library
    interfaces: tuple[Interface, ...]
    severity: Severity


def cases(seen: Survey, library: Library, *faults: Flaw, worst: Severity = "error") -> list[FaultyChoice]:
    """Return the choices that have one of these faults, with the interfaces at fault."""
    faulty: list[FaultyChoice] = []
    for choice, fault in seen.faulty(library):
        if fault not in faults:
            continue
        weight = severity(seen.job, library, chosen=bool(choice.variable(library)))
        if weight is not None:
            lost = tuple(seen.strays(choice, library)) or choice.taken(library)
            faulty.append(FaultyChoice(choice, library, lost, milder(weight, worst)))
    return faulty


def weighed(seen: Survey, case: FaultyChoice) -> FaultyChoice:
    """Return the case as a warning if it is not the first interface or no node tried it."""
    first = case.choice.taken(case.library)[0]
    tried = seen.reach.standing(case.choice.node, first.address) != "untried"
    return case if first in case.interfaces and tried else case._replace(severity=milder(case.severity, "warning"))


def case_findings(
    seen: Survey,
    several: Iterable[FaultyChoice],
    message: str,
    text: str,
    *,
    commands: tuple[str, ...] = (),
    owner: Owner = "user",
) -> Iterator[Fault]:
    """Yield one finding for the ranks that share a choice, its severity and its fix.

    `message` may name {ranks}, {library}, {taken}, {setting} and {way}, the interface to use instead.
    """
    alike = grouped(
        several,
        lambda case: (
            case.library,
            case.severity,
            setting(case.choice, case.library),
            tuple(i.name for i in case.interfaces),
            commands or fix_commands(seen, case.choice, case.library),
        ),
    )
    for (library, weight, chosen, _, cure), those in alike.items():
        ranks = [r for case in those for r in case.choice.ranks]
        way = seen.way(those[0].choice)
        by_node = {case.choice.node.name: shown(case.interfaces) for case in those if case.interfaces}
        evidence = {f"{node} takes": taken for node, taken in list(by_node.items())[:_SHOWN]}
        yield found(
            seen.job,
            ranks,
            message.format(
                ranks=named(seen.job, ranks),
                library="NCCL" if library == "nccl" else "Gloo",
                taken=shown(those[0].interfaces[:2]),
                setting=f" ({chosen})" if chosen else "",
                way=shown([way]) if way else "the node's address in the common network",
            ),
            Fix(text, cure),
            severity=weight,
            owner=owner,
            evidence=({"setting": chosen} if chosen else {}) | evidence,
        )


def setting(choice: Choice, library: Library) -> str:
    """Return the setting that made or narrowed the choice: NCCL_SOCKET_IFNAME=eth1; else ''."""
    name = choice.variable(library)
    if library == "nccl" and not name and choice.settings.get(FAMILY) in FAMILIES:
        name = FAMILY
    value = choice.gloo_names if library == "gloo" else choice.settings.get(name, "")
    quoted = repr(value) if value != "".join(value.split()) else value
    return brief(f"{name}={quoted}", 60) + whence(choice, name) if name else ""


def whence(choice: Choice, name: str) -> str:
    """Return a note that an NCCL setting comes from a file, '' if a variable sets it."""
    in_file = name in choice.settings and name not in choice.ranks[0].environment
    return " in NCCL's configuration file" if in_file else ""


def fix_commands(seen: Survey, choice: Choice, library: Library) -> tuple[str, ...]:
    """Return the commands that make a library use the interface that reaches the other nodes."""
    way = seen.way(choice)
    if library == "gloo":
        return (f"export GLOO_SOCKET_IFNAME={quote(way.name)}",) if way else ("ip -brief address",)
    first = removals(seen.job, choice.ranks, COMM_ID) if COMM_ID in choice.settings else ()
    if way is None:
        return first or ("export NCCL_SOCKET_IFNAME=^lo,docker,virbr,veth,br-",)
    wish = {IFNAME: f"={way.name}", FAMILY: choice.settings.get(FAMILY, "")}
    family: tuple[str, ...] = ()
    if way not in nccl(choice.interfaces, wish):
        family = (f"export NCCL_SOCKET_FAMILY={'AF_INET6' if ':' in way.address else 'AF_INET'}",)
    return (*first, f"export NCCL_SOCKET_IFNAME={quote('=' + way.name)}", *family)


def shown(interfaces: Iterable[Interface]) -> str:
    """Return interfaces with addresses, each once: eth0 (10.0.0.1) and lo (127.0.0.1)."""
    return listed(list(dict.fromkeys(f"{i.name} ({i.address})" if i.name else i.address for i in interfaces)))


def cure_of_syntax(seen: Survey, choice: Choice) -> tuple[tuple[str, ...], Severity]:
    """Return the commands that replace a malformed value, and how severe the fault is."""
    value = choice.settings[IFNAME]
    wish = meant(value)
    hoped = nccl(choice.interfaces, {**choice.settings, IFNAME: wish}) if items_of(wish) else ()
    if seen.several and hoped and only_this_host(choice.node, hoped[0]):
        hoped = ()  # ^docker, for example, leaves the loopback
    cure = (
        (f"export NCCL_SOCKET_IFNAME={quote(wish)}",)
        if hoped and len(value) > 1
        else fix_commands(seen, choice, "nccl")
    )
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
