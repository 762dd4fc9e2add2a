"""The sentences of a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from distcheck.isolation.larger import Boundary
from distcheck.isolation.round import Outcome, Trial

MOST_NAMES = 8
DID: dict[Outcome, str] = {
    "wrong": "gives wrong numbers", "hung": "hangs", "failed": "fails", "slow": "is slow",
}  # fmt: skip
DO: dict[Outcome, str] = {"wrong": "give wrong numbers", "hung": "hang", "failed": "fail", "slow": "are slow"}
WORK = {"matmul": "matrix multiplication", "copy": "memory copy"}


def names(nodes: Sequence[str]) -> str:
    """Return "a, b and c"; only the first names if there are many."""
    shown = list(nodes[:MOST_NAMES])
    if len(nodes) > MOST_NAMES:
        shown.append(f"{len(nodes) - MOST_NAMES} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def some(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences, and the number of further ones."""
    more = len(sentences) - MOST_NAMES
    return [*sentences[:MOST_NAMES], *([f"and {more} more"] if more > 0 else [])]


def rounds(tests: Sequence[Trial]) -> str:
    """Return "(rounds 2, 3 and 4)"."""
    numbers = sorted({t.round for t in tests})
    return f"({'round' if len(numbers) == 1 else 'rounds'} {names([str(n) for n in numbers])})"


def share(tests: Sequence[Trial]) -> str:
    """Return how slow: "at 41% of what the others show"."""
    ratios = [t.ratio for t in tests if t.ratio is not None and t.outcome == "slow"]
    return f", at {min(ratios):.0%} of what the others show" if ratios else ""


def ranks(local_ranks: Sequence[int], noun: str) -> str:
    """Return "local rank 3 of ", or nothing without ranks."""
    if not local_ranks:
        return ""
    return f"{noun}{'' if len(local_ranks) == 1 else 's'} {names([str(r) for r in local_ranks])} of "


def score(passed: int, tests: int) -> str:
    """Return how often it passed."""
    return f"flaky, passed {passed} of {tests}" if passed else f"{tests} of {tests} tests"


def two_nodes(pair: Sequence[str], fault: Outcome, times: int, rails: Sequence[int]) -> str:
    """Return the sentence about two nodes that fail together, without a third to decide."""
    a, b = pair
    rail = f" on {ranks(rails, 'rail').removesuffix(' of ')}" if rails else ""
    often = f" {times} times" if times > 1 else ""
    return (
        f"{a} and {b} each pass alone, and together {DO.get(fault, 'fail')}{rail}{often}: two nodes cannot tell "
        f"whether {a}, {b} or the path between them is at fault; a spare node would decide: test it with {a} and "
        f"with {b}; the one that fails with it is bad, and if both pass it is the path"
    )


def never_passed(nodes: Sequence[str], others: Sequence[str]) -> str:
    """Return why nodes that never passed are not convicted; `others` failed with them."""
    whom = [*(["each other"] if len(nodes) > 1 else []), *others]
    they, are = ("it", "is") if len(nodes) == 1 else ("they", "are")
    return (
        f"{names(nodes)} did not pass with {names(whom)}, and there were too few tests with working nodes to tell "
        f"whether {they} or the paths {are} at fault"
    ).replace("it or the paths is", "it or the path is")


def other_side(nodes: Sequence[str], partners: Sequence[str]) -> str:
    """Return why nodes are not convicted that may be on another side than their partners."""
    they, are = ("it", "is") if len(nodes) == 1 else ("they", "are")
    return (
        f"{names(nodes)} failed with {names(partners)}; it is not known whether {they} {are} at fault or on the other "
        "side of what parts the nodes"
    )


def boundaries(found: Sequence[Boundary]) -> list[str]:
    """Return between which sides tests fail; many boundaries of scale are summarized."""
    by_size = [b for b in found if b.cause == "scale"]
    if len(by_size) < 2:
        return some([boundary(b) for b in found])
    least = min(len(b.sides[0]) + len(b.sides[1]) for b in by_size)
    most = max(len(side) for b in by_size for side in b.sides)
    alike = (
        f"{len(by_size)} groups of {least} nodes or more fail, and all their parts of up to {most} pass; "
        f"the first: {boundary(by_size[0])}"
    )
    return some([alike, *(boundary(b) for b in found if b.cause != "scale")])


def boundary(found: Boundary) -> str:
    """Return the two sides of a boundary and its likely cause, without blaming a node."""
    left, right = (names(side) for side in found.sides)
    if found.cause == "flaky":
        return f"{left} with {right} failed in one test and passed in another: flaky, and no node can be named"
    if found.cause == "link":
        return f"{left} and {right} fail together and each works with others: the link between them"
    hint = (
        "it fails wherever nodes of both sides are together, so look at what connects the two sides (boundary)"
        if found.cause == "boundary"
        else "smaller mixtures of both pass too, so look at limits that grow with the number of nodes (scale)"
    )
    return (
        f"{left} pass together and so do {right}, but not all of them at once: "
        f"boundary, infrastructure or scale; {hint}"
    )
