"""Which failing trials between nodes the rules about interfaces explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.network.interface_choices import LIBRARIES, Choice, Library, interfaces_of, outside, within
from distcheck.rules.network.selected_interfaces import Flaw, Survey, survey
from distcheck.rules.network.translation import NO_ROUTE, neighbours, translated
from distcheck.rules.network.trials import between_nodes
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface, PeerTrial
    from distcheck.facts.node import NodeFacts


class Unrouted(NamedTuple):
    """A failing trial between two nodes whose networks are not connected."""

    source: str
    target: str
    trial: PeerTrial
    seen_at: str
    """The address at which others see the target, which it does not have; empty if the source has no route."""


def explained_trials(job: Job) -> frozenset[tuple[str, str, str]]:
    """Return which failing trials these rules explain: source, target and address."""
    return _by_choice(job) | {(u.trial.source, u.trial.target, u.trial.address) for u in unrouted(job)}


@once
def unrouted(job: Job) -> list[Unrouted]:
    """Return the failing trials of interfaces that are well chosen, between networks that are not connected.

    The target is behind address translation, and the source is not beside it; or the source has no route.
    """
    failed = [(source, target, trial) for source, target, trial in between_nodes(job) if not trial.connected]
    if not failed:
        return []
    chosen, seen, nodes = _by_choice(job), translated(job), {node.key: node for node in job.nodes}
    found = []
    for source, target, trial in failed:
        at = "" if neighbours(nodes[source], trial.address) else seen.get(target, "")
        if (trial.source, trial.target, trial.address) not in chosen and (at or NO_ROUTE in trial.detail):
            found.append(Unrouted(source, target, trial, at))
    return found


@once
def _by_choice(job: Job) -> frozenset[tuple[str, str, str]]:
    """Return which failing trials the choice of interfaces explains.

    A failing trial is explained if
    - it goes to an address that a node has chosen wrongly;
    - its source uses an address in another network, or an interface that is down, and the target address is one that
      the other nodes use;
    - its source uses another address family than the target address;
    - an end has the same address as another node, in that network: answers to one of them reach the other;
    - it goes to the address used to reach rank 0, from a node without an address of that family. Only rank 0 is
      contacted there, and another rule reports the nodes that cannot reach it.
    """
    failed = [(source, target, trial) for source, target, trial in between_nodes(job) if not trial.connected]
    if not failed:
        return frozenset()
    seen = survey(job)
    flawed = [(choice, library, flaw) for library in LIBRARIES for choice, flaw in seen.faulty(library)]
    ends = {(c.node.key, address) for c, library, flaw in flawed for address in _missed(seen, c, library, flaw)}
    faulty = {(c.node.key, lib) for c, lib, flaw in flawed if flaw in {"other-network", "family", "down"}}
    families = {(c.node.key, ":" in c.taken(lib)[0].address) for c, lib, flaw in flawed if flaw == "family"}
    doubled = _doubled(seen)
    sources = {source for source, _, trial in failed if set(trial.uses) <= {"master"}}
    there = [node for node in job.nodes if node.key in sources]
    lacking = {(node.key, ipv6) for node in there for ipv6 in (False, True) if _lacks(node, ipv6=ipv6)}
    return frozenset(
        (trial.source, trial.target, trial.address)
        for source, target, trial in failed
        if (target, trial.address) in ends
        or trial.address in seen.shared
        or (source, ":" not in trial.address) in families
        or (set(trial.uses) <= {"master"} and (source, ":" in trial.address) in lacking)
        or any(within(i, trial.address) for end in (source, target) for i in doubled.get(end, ()))
        or ("master" not in trial.uses and any((source, use) in faulty for use in trial.uses))
    )


def _lacks(node: NodeFacts, *, ipv6: bool) -> bool:
    """Whether a node has no usable address of a family."""
    usable = [i for i in interfaces_of(node) if outside(i)]
    return bool(usable) and all((":" in i.address) != ipv6 for i in usable)


def _doubled(seen: Survey) -> dict[str, list[Interface]]:
    """Return the interfaces whose address another node also has, by node."""
    holders: dict[str, list[Interface]] = {}
    for address, nodes in seen.shared.items():
        for node in nodes:
            holders.setdefault(node.key, []).extend(i for i in interfaces_of(node) if i.address == address)
    return holders


def _missed(seen: Survey, choice: Choice, library: Library, flaw: Flaw) -> list[str]:
    """Return the addresses of a faulty choice that the others do not reach because of the fault."""
    lost = seen.unreachable(choice, library)
    if flaw in {"syntax", "here", "link-local", "down", "other-network", "family"}:
        lost = [i for i in choice.taken(library) if seen.reach.standing(choice.node, i.address) != "met"]
    return [i.address for i in lost]
