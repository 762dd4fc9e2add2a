"""The state of a search: its nodes, and every test with its outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from distcheck.isolation.round import Round, Trial

SLOW_ON_CPUS, SLOW_WORK_ON_CPUS = 0.35, 0.2
"""Shares of the others' median: Gloo's ranks do everything on the CPUs, so other load on them shows. A rank's own work
is repeated beside other groups, so noise may appear three times."""
_NUMBER = re.compile(r"([0-9]{1,18})")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a search."""

    slow_share: float = 0.8
    """Below this share of the others' median a group is slow; lower if ranks share CPUs."""
    slow_work_share: float = 0.8
    """The same for a rank's own work."""
    alone_speeds: bool = True
    """Whether the collective of a node alone is judged by its speed, beside its ranks' own work."""


def settings_for(backend: str) -> Settings:
    """Return the settings for a backend."""
    if backend != "gloo":
        return Settings()
    # On CPUs a node alone copies within its memory, which the ranks' own work shows with less noise.
    return Settings(slow_share=SLOW_ON_CPUS, slow_work_share=SLOW_WORK_ON_CPUS, alone_speeds=False)


class State(msgspec.Struct, frozen=True):
    """A search, made by `start`, `take` and `lose`; deterministic in names, seed and results."""

    nodes: tuple[str, ...]
    """Sorted by name, numbers by value; without missing nodes."""
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
    """Return a new search among these nodes; `missing` has a reason for each absent one."""
    absent = dict(missing or {})
    present = tuple(sorted(set(nodes) - set(absent), key=by_name))
    return State(present, absent, seed, settings or Settings())


def lose(state: State, nodes: Mapping[str, str]) -> State:
    """Return the state without nodes that left; their failures count against no other node."""
    stay = tuple(n for n in state.nodes if n not in nodes)
    gone = {n: reason for n, reason in nodes.items() if n in state.nodes}
    return msgspec.structs.replace(state, nodes=stay, missing={**state.missing, **gone})


def by_name(node: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key with node2 before node10: neighbours by name usually share a switch."""
    pieces = _NUMBER.split(node)
    return (*((piece, 0) if i % 2 == 0 else ("", int(piece)) for i, piece in enumerate(pieces)), (node, 0))
