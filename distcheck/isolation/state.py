"""What is known so far: who takes part, and every test with its outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from distcheck.isolation.round import Round, Trial

_NUMBER = re.compile(r"([0-9]{1,18})")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen."""

    groups: bool = True
    """Whether groups of more than two nodes are tested."""
    largest_group: int | None = None
    """The most nodes of one group; None for all of them."""
    floor_GBps: float | None = None  # noqa: N815 - the unit
    """The least bus bandwidth between nodes; below it a group is slow whatever the others show."""
    slow_share: float = 0.8
    """Below this share of the others' median a group is slow; where ranks share CPUs, less is needed."""
    slow_work_share: float = 0.8
    """The same of a rank's own work."""


class State(msgspec.Struct, frozen=True):
    """A search, from `start`, by `take` and `lose`; the same for the same names, seed and results."""

    nodes: tuple[str, ...]
    """Sorted by name, numbers by value; without the missing."""
    missing: dict[str, str]
    """Nodes that do not take part, with the reason."""
    seed: int = 0
    settings: Settings = Settings()
    rounds: tuple[tuple[Round, tuple[Trial, ...]], ...] = ()
    """Finished rounds, in order."""

    @property
    def tests(self) -> Iterable[Trial]:
        """Every test so far, in order."""
        return chain.from_iterable(tests for _, tests in self.rounds)


def start(
    nodes: Iterable[str], *, seed: int = 0, missing: Mapping[str, str] | None = None, settings: Settings | None = None
) -> State:
    """Begin a search among these nodes, in the order of their names; `missing` has a reason for each absent one."""
    absent = dict(missing or {})
    present = tuple(sorted(set(nodes) - set(absent), key=by_name))
    return State(present, absent, seed, settings or Settings())


def lose(state: State, nodes: Mapping[str, str]) -> State:
    """Go on without nodes that have left; what they failed in is held against nobody else."""
    stay = tuple(n for n in state.nodes if n not in nodes)
    gone = {n: reason for n, reason in nodes.items() if n in state.nodes}
    return msgspec.structs.replace(state, nodes=stay, missing={**state.missing, **gone})


def by_name(node: str) -> tuple[tuple[str, int], ...]:
    """Order node2 before node10: neighbours by name usually share a switch."""
    pieces = _NUMBER.split(node)
    return (*((piece, 0) if i % 2 == 0 else ("", int(piece)) for i, piece in enumerate(pieces)), (node, 0))
