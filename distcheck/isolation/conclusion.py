"""Derives the verdict from the tests so far."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from distcheck.facts.quantities import count
from distcheck.isolation import culprits, words
from distcheck.isolation.alone import Alone
from distcheck.isolation.larger import Boundary
from distcheck.isolation.round import GROUPED
from distcheck.isolation.sight import Sight
from distcheck.isolation.state import State
from distcheck.isolation.verdict import Culprit, Kind, SearchVerdict, Suspect

SHARED = 3
"""From this many nodes on, a fault of more than half of them is not blamed on single nodes."""


def conclude(
    state: State,
    runs: dict[str, Alone],
    seen: Sight | None = None,
    boundaries: Sequence[Boundary] = (),
    *,
    open_still: bool = False,
) -> SearchVerdict:
    """Return the verdict of a search; `seen` is None if most nodes failed alone.

    `open_still`: tests are pending that may show that the nodes that never passed form a side.
    """
    of_two = len(state.nodes) < SHARED
    convicted = [culprits.of_alone(node, its, of_two=of_two) for node, its in runs.items() if its.convicted]
    suspects: list[Suspect] = []
    if seen is not None:
        excused: list[Culprit] = []
        for its in culprits.of_pairs(seen):
            is_excused = seen.joined.excused(its.nodes[0]) or (open_still and not its.flaky)
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
            c if c.part == "link" or (alone_counts and not c.by_others) else replace(c, certain=False)
            for c in convicted
        ]
    tested = {n for t in state.tests if t.outcome != "untested" for n in t.nodes}
    met = {n for t in state.tests if t.outcome != "untested" and len(t.nodes) > 1 for n in t.nodes}
    single = tested - met - blamed
    draft = SearchVerdict(
        kind="healthy",
        culprits=tuple(convicted),
        boundaries=tuple(b for b in boundaries if b.cause != "link"),
        undecided=tuple(suspects),
        untested=tuple(n for n in state.nodes if n not in tested),
        only_alone=tuple(n for n in state.nodes if n in single) if len(state.nodes) > 1 else (),
        missing=state.missing,
        largest_passed=max((len(t.nodes) for t in state.tests if t.outcome == "passed"), default=0),
        rounds=len(state.rounds),
        sentence="",
    )
    kind = "shared" if shared else _kind(state, draft)
    return replace(draft, kind=kind, sentence=_sentence(state, replace(draft, kind=kind)))


def _kind(state: State, draft: SearchVerdict) -> Kind:
    if len(draft.untested) == len(state.nodes):
        return "unmeasured"
    if draft.culprits:
        return "found"
    if draft.boundaries:
        return "boundary"
    gaps = draft.undecided or draft.untested or draft.only_alone or _groups_without_result(state)
    return "undecided" if gaps else "healthy"


def _groups_without_result(state: State) -> list[tuple[str, ...]]:
    return [t.nodes for t in state.tests if t.purpose in GROUPED and t.outcome == "untested"]


def _sentence(state: State, draft: SearchVerdict) -> str:
    said = [f"missing: {words.names([f'{n} ({why})' for n, why in state.missing.items()])}"] if state.missing else []
    if draft.kind == "unmeasured":
        return "; ".join([*said, "no test came to an end"])
    if draft.kind == "shared":
        said.append(
            f"most of the {len(state.nodes)} nodes, or of the ways between them, show faults: "
            "something that they share (software, network, firewall) is likelier than any single node"
        )
    said += words.some([*(c.sentence for c in draft.culprits), *(s.sentence for s in draft.undecided)])
    said += words.boundaries(draft.boundaries)
    if draft.untested:
        said.append(f"not tested: {words.names(draft.untested)}")
    if draft.only_alone:
        said.append(f"{words.names(draft.only_alone)} passed alone, with no other node to be tested with")
    if groups := _groups_without_result(state):
        said.append(f"no result of {count(len(groups), 'group')} of up to {max(map(len, groups))} nodes")
    if draft.kind == "healthy":
        most = draft.largest_passed
        together = f"alone and in groups of up to {most}" if most > 1 else "alone"
        said.append(f"{count(len(state.nodes), 'node')} passed {together}")
    return "; ".join(said)
