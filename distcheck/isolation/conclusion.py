"""From what is known to the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from distcheck.isolation import culprits, words
from distcheck.isolation.alone import Alone
from distcheck.isolation.attribution import Attribution, Tally
from distcheck.isolation.groups import Boundary
from distcheck.isolation.round import GROUPED
from distcheck.isolation.state import State
from distcheck.isolation.together import together
from distcheck.isolation.verdict import Kind, Suspect, Verdict

SHARED = 3
"""From so many nodes on, what more than half of them show is nobody's fault in particular."""


def conclude(
    state: State,
    runs: dict[str, Alone],
    parts: Sequence[tuple[Tally, Attribution]] = (),
    boundaries: Sequence[Boundary] = (),
) -> Verdict:
    """Sum up a search; without pairs when most nodes failed alone."""
    of_two = len(state.nodes) < SHARED
    convicted = [culprits.of_alone(node, its, of_two=of_two) for node, its in runs.items() if its.convicted]
    suspects: list[Suspect] = []
    for known, found in parts:
        suspects += culprits.suspects(known, found)
        convicted += culprits.of_pairs(known, found) + culprits.of_links(found)
        suspects += culprits.flaky_suspects(known, found)
    # Whoever met nodes of one side only may stand on the other.
    joined = together(state)
    doubtful = [c for c in convicted if c.by_others and joined.apart(c.nodes[0])]
    if doubtful and len(parts) == 1:
        # Where a partition is likely, and not yet found, several parts may be of the same side.
        doubtful = [c for c in convicted if c.by_others]
    convicted = [c for c in convicted if c not in doubtful]
    suspects += [Suspect(c.nodes, c.evidence, words.other_side(c.nodes[0])) for c in doubtful]
    nobody = bool(suspects) and not any(any(known.passed.values()) for known, _ in parts)
    links = {c.nodes for c in convicted if c.part == "link"}
    in_groups = [culprits.of_group(b) for b in boundaries if b.cause == "link"]
    convicted += [c for c in in_groups if c.nodes not in links]
    widespread = any(found.widespread for _, found in parts)
    blamed = {n for c in convicted if c.part != "link" for n in c.nodes}
    shared = widespread or (len(state.nodes) >= SHARED and (nobody or 2 * len(blamed) > len(state.nodes)))
    if shared:
        convicted = [c if c.part == "link" else replace(c, certain=False) for c in convicted]
    seen = {n for t in state.tests if t.outcome != "untested" for n in t.nodes}
    met = {n for t in state.tests if t.outcome != "untested" and len(t.nodes) > 1 for n in t.nodes}
    single = seen - met - blamed
    draft = Verdict(
        kind="healthy",
        culprits=tuple(convicted),
        boundaries=tuple(b for b in boundaries if b.cause != "link"),
        undecided=tuple(suspects),
        untested=tuple(n for n in state.nodes if n not in seen),
        only_alone=tuple(n for n in state.nodes if n in single) if len(state.nodes) > 1 else (),
        missing=state.missing,
        widespread=widespread,
        largest_passed=max((len(t.nodes) for t in state.tests if t.outcome == "passed"), default=0),
        rounds=len(state.rounds),
        sentence="",
    )
    kind = "shared" if shared else _kind(state, draft)
    return replace(draft, kind=kind, sentence=_sentence(state, replace(draft, kind=kind)))


def _kind(state: State, draft: Verdict) -> Kind:
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


def _sentence(state: State, draft: Verdict) -> str:
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
        said.append(f"no result of {words.count(len(groups), 'group')} of up to {max(map(len, groups))} nodes")
    if draft.kind == "healthy":
        most = draft.largest_passed
        together = f"alone and in groups of up to {most}" if most > 1 else "alone"
        said.append(f"{words.count(len(state.nodes), 'node')} passed {together}")
    return "; ".join(said)
