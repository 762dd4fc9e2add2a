"""A case of the collectives that failed or was slow, repeated with one setting changed at a time."""

from __future__ import annotations

from distcheck.facts.base import Amount, Facts
from distcheck.facts.isolation import Fault


class Repeat(Facts, frozen=True):
    """One repetition, in new rank processes."""

    outcome: Fault
    variable: str = ""
    """The environment variable that was set on every rank; empty: nothing was changed."""
    value: str = ""
    words: tuple[str, ...] = ()
    """What its ranks reported, if it did not pass."""
    busbw_GBps: Amount | None = None  # noqa: N815 the unit's own spelling
    """Of a slow case: its bus bandwidth; it passes at 1.5 times the one before."""


class Repeated(Facts, frozen=True):
    """The case, and how each repetition ended, in their order.

    The first is without a change. After a pass follow one without a change and one with the same setting.
    """

    nodes: tuple[str, ...]
    """The nodes that took part, with all their ranks."""
    operation: str
    """With its data type unless float32: all_reduce bfloat16."""
    repeats: tuple[Repeat, ...] = ()
    untried: tuple[str, ...] = ()
    """Settings that were not tried, as VARIABLE=value: one passed before, or no time was left."""
