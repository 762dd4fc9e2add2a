"""Derives the verdict from the tests so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from distcheck.facts.isolation import CulpritFacts, Isolation, Sides, Suspects
from distcheck.facts.quantities import count
from distcheck.isolation import culprits, words
from distcheck.isolation.alone import Alone
from distcheck.isolation.larger import Boundary
from distcheck.isolation.round import GROUPED
from distcheck.isolation.sight import Sight
from distcheck.isolation.state import State

SHARED = 3
"""From this many nodes on, a fault of more than half of them is not blamed on single nodes."""
_COMMON = (
    "most of the {} nodes, or of the ways between them, show faults: "
    "something that they share (software, network, firewall) is likelier than any single node"
)


def conclude(
    state: State,
    runs: dict[str, Alone],
    seen: Sight | None = None,
    boundaries: Sequence[Boundary] = (),
    *,
    open_still: bool = False,
) -> Isolation:
    """Return the verdict of a search; `seen` is None if most nodes failed alone.

    `open_still`: tests are pending that may show that the nodes that never passed form a side.
    """
    of_two = len(state.nodes) < SHARED
    convicted = [culprits.of_alone(node, its, of_two=of_two) for node, its in runs.items() if its.convicted]
    suspects: list[Suspects] = []
    if seen is not None:
        excused: list[CulpritFacts] = []
        for its in culprits.of_pairs(seen):
            (node,) = its.nodes
            is_excused = seen.joined.excused(node) or (open_still and node in seen.found.never)
            (excused if is_excused else convicted).append(its)
        convicted += culprits.of_links(seen)
        suspects += culprits.suspects(seen, excused) + culprits.flaky_suspects(seen)
    nobody = bool(suspects) and seen is not None and not any(seen.known.passed.values())
    links = {c.nodes for c in convicted if c.part == "link"}
    in_groups = [culprits.of_group(b) for b in boundaries if b.cause == "link"]
    convicted += [c for c in in_groups if c.nodes not in links]
    widespread = seen is not None and any(found.widespread for _, found in seen.sides)
    blamed = {n for c in convicted if c.part != "link" for n in c.nodes}
    never = set(seen.found.never) if seen is not None else set()
    most = 2 * len(blamed) > len(state.nodes)
    enough = len(state.nodes) >= SHARED
    shared = widespread or (enough and (nobody or most or 2 * len(blamed | never) > len(state.nodes)))
    if shared:
        # A node that is bad alone is bad whatever the paths between nodes are, unless most nodes are.
        alone_counts = not (widespread or most)
        convicted = [
            c if c.part == "link" or (alone_counts and not _by_others(c)) else replace(c, certain=False)
            for c in convicted
        ]
    if blamed >= set(state.nodes):
        # A fault on every node may be the job's own configuration; one or two nodes have no reference.
        convicted = [replace(c, certain=False) for c in convicted]
    parted = [b for b in boundaries if b.cause != "link"]
    tested = {n for t in state.tests if t.outcome != "untested" for n in t.nodes}
    untested = [n for n in state.nodes if n not in tested]
    gaps = _gaps(state, untested, blamed)
    kind: Literal["healthy", "found", "undecided", "boundary", "shared", "unmeasured"] = "healthy"
    if shared:
        kind = "shared"
    elif len(untested) == len(state.nodes):
        kind = "unmeasured"
    elif convicted or parted:
        kind = "found" if convicted else "boundary"
    elif suspects or gaps:
        kind = "undecided"
    said = [f"missing: {words.names([f'{n} ({why})' for n, why in state.missing.items()])}"] if state.missing else []
    if kind == "unmeasured":
        said.append("no test came to an end")
    else:
        said += [_COMMON.format(len(state.nodes))] if shared else []
        said += words.some([*(c.sentence for c in convicted), *(s.sentence for s in suspects)])
        said += words.boundaries(parted) + gaps
    if kind == "healthy":
        largest = max((len(t.nodes) for t in state.tests if t.outcome == "passed"), default=0)
        together = f"alone and in groups of up to {largest}" if largest > 1 else "alone"
        said.append(f"{count(len(state.nodes), 'node')} passed {together}")
    return Isolation(
        kind=kind,
        sentence="; ".join(said),
        culprits=tuple(convicted),
        boundaries=tuple(Sides(b.sides, b.cause) for b in parted),
        undecided=tuple(suspects),
        # Lost nodes count as untested: nothing else is known about them.
        untested=(*untested, *state.missing),
        rounds=len(state.rounds),
    )


def _gaps(state: State, untested: Sequence[str], blamed: set[str]) -> list[str]:
    """Return what is not known: nodes without a test or a partner, and groups without a result."""
    said = [f"not tested: {words.names(untested)}"] if untested else []
    met = {n for t in state.tests if t.outcome != "untested" and len(t.nodes) > 1 for n in t.nodes}
    single = [n for n in state.nodes if n not in met and n not in blamed and n not in untested]
    if single and len(state.nodes) > 1:
        said.append(f"{words.names(single)} passed alone, with no other node to be tested with")
    groups = [t.nodes for t in state.tests if t.purpose in GROUPED and t.outcome == "untested"]
    if groups:
        said.append(f"no result of {count(len(groups), 'group')} of up to {max(map(len, groups))} nodes")
    return said


def _by_others(its: CulpritFacts) -> bool:
    """Return whether it is convicted by tests with other nodes, not by tests alone."""
    return its.part != "link" and any(len(e.nodes) > 1 for e in its.evidence)
