"""What rules about interfaces are asked about: each choice of a library that has a fault, and each choice of NCCL."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.rules.finding import Fault
from distcheck.rules.job.nccl_remedies import removals
from distcheck.rules.network.interface_choices import LIBRARIES, NAMES, milder, severity
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import about, brief, grouped, listed, once, same
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, nccl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.facts.base import Missing
    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface
    from distcheck.rules import Outcome
    from distcheck.rules.finding import Severity
    from distcheck.rules.network.interface_choices import Choice, Library
    from distcheck.rules.network.selected_interfaces import Flaw, Survey

_SHOWN = 8
"""Nodes shown in a finding's evidence."""


class FaultyChoice(NamedTuple):
    """A library's choice on a node that has a fault."""

    seen: Survey
    choice: Choice
    library: Library
    flaw: Flaw
    interfaces: tuple[Interface, ...]
    """Those at fault."""
    severity: Severity

    @property
    def by_hand(self) -> bool:
        """Whether a variable or a configuration file made the choice."""
        return self.choice.chosen(self.library)

    @property
    def taken(self) -> str:
        """The interfaces at fault, for a message."""
        return shown(self.interfaces[:2])

    @property
    def uses(self) -> str:
        """What a message begins with: NCCL uses eth1 (10.1.0.1) (NCCL_SOCKET_IFNAME=eth1)."""
        return f"{NAMES[self.library]} uses {self.taken}{self.setting}"

    @property
    def setting(self) -> str:
        """The setting that made or narrowed the choice, in brackets; '' without one."""
        chosen = setting(self.choice, self.library)
        return f" ({chosen})" if chosen else ""

    @property
    def way(self) -> str:
        """The interface to use instead."""
        way = self.seen.way(self.choice)
        return shown([way]) if way else "the node's address in the common network"

    @property
    def there(self) -> str:
        """The interfaces of the node that are up."""
        return brief(shown(i for i in self.choice.interfaces if i.up), 100)

    @property
    def unproven(self) -> bool:
        """Whether the first interface is not at fault, or no node tried it; it is a warning then."""
        first = self.choice.taken(self.library)[0]
        return first not in self.interfaces or self.seen.reach.standing(self.choice.node, first.address) == "untried"

    def alike(self, fault: Fault) -> tuple[object, ...]:
        """Return what is equal for cases that one finding reports: all but the nodes' own addresses."""
        words = fault.message
        own_words = filter(None, (self.taken, self.way, self.there, self.choice.node.name))
        for own in sorted(own_words, key=len, reverse=True):  # one may be a part of another
            words = words.replace(own, "")
        names = tuple(i.name for i in self.interfaces)
        return words, self.library, self.severity, fault.severity, self.setting, names, fault.fix or self.use

    @property
    def use(self) -> tuple[str, ...]:
        """The commands that make the library use the interface that reaches the other nodes."""
        return fix_commands(self.seen, self.choice, self.library)


@once
def _cases(job: Job) -> tuple[FaultyChoice, ...]:
    seen, found = survey(job), []
    for library in LIBRARIES:
        for choice, flaw in seen.faulty(library):
            chosen = choice.settings if (library, flaw) == ("nccl", "nothing") else choice.variable(library)
            weight = severity(job, library, chosen=bool(chosen))
            if weight is not None:
                lost = tuple(seen.unreachable(choice, library)) or choice.taken(library)
                found.append(FaultyChoice(seen, choice, library, flaw, lost, weight))
    return tuple(found)


def each_case(job: Job, judge: Callable[[FaultyChoice], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of faulty choices (``of=each_case``), one fault for all ranks with the same interfaces.

    Its severity is the milder one of the case's and the fault's. In its fix {use} stands for `FaultyChoice.use`.
    """
    said = [(case, fault) for case in _cases(job) if isinstance(fault := judge(case), Fault)]
    for several in grouped(said, lambda each: each[0].alike(each[1])).values():
        case, fault = several[0]
        chosen = setting(case.choice, case.library)
        evidence = {"setting": chosen} if chosen else {}
        for own, _ in several[:_SHOWN]:
            name = own.choice.node.name
            evidence |= {f"{name} takes": shown(own.interfaces)} if own.interfaces else {f"{name} has": own.there}
        merged = msgspec.structs.replace(
            fault,
            severity=milder(case.severity, fault.severity or "error"),
            evidence={**evidence, **fault.evidence},
            values={"use": case.use},
        )
        yield from about(job, [r for c, _ in several for r in c.choice.ranks], merged)


def each_choice(job: Job, judge: Callable[[Choice], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of NCCL's choices (``of=each_choice``), one fault for all ranks with an equal one."""
    choices = survey(job).choices if severity(job, "nccl", chosen=True) else ()
    said = [(choice, fault) for choice in choices if isinstance(fault := judge(choice), Fault)]
    for several in grouped(said, lambda each: (same(each[1]), each[1].fix)).values():
        yield from about(job, [rank for choice, _ in several for rank in choice.ranks], several[0][1])


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
