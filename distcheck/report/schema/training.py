"""The training steps of --step, as the document shows them."""

from __future__ import annotations

from distcheck.report.schema.part import Part


class RanksBecause(Part, frozen=True):
    """Ranks that share a reason."""

    ranks: tuple[int, ...]
    reason: str


class TrainingRow(Part, frozen=True):
    """One way of training, over all ranks."""

    way: str
    """DDP or FSDP2."""
    dtype: str | None
    """The type of the tensors; None if no rank took part."""
    ranks: int
    """How many ranks took part."""
    steps: int
    """How many steps each of them took at least."""
    due: int
    """How many they should have taken."""
    tensors: int
    """How many parameters each of them compared with exact results."""
    wrong: tuple[int, ...]
    """The ranks with a gradient or a parameter that differs from the exact result."""
    not_taken: tuple[RanksBecause, ...]
    """Ranks that could not train in this way."""
