"""What training steps did on a rank: to its parameters and gradients."""

from __future__ import annotations

from distcheck.facts.base import Count, Factor, Facts


class Parameter(Facts, frozen=True):
    """One parameter on one rank; each digest is a hash of its bytes."""

    name: str
    wrapped: str = ""
    """The digest after the model was wrapped, which copies rank 0's values; empty if the rank did not come so far."""
    stepped: tuple[str, ...] = ()
    """The digest after each step."""


class WrongTensor(Facts, frozen=True):
    """A tensor of a step that differs from the exact result."""

    tensor: str
    step: Count
    """From 1 on."""
    elements: Count
    wrong: Count
    got: str
    """The first wrong element."""
    expected: str


class Training(Facts, frozen=True):
    """A few steps of a small model on one rank."""

    dtype: str
    parameters: tuple[Parameter, ...] = ()
    steps: Count = 0
    """How many steps the rank took."""
    due: Count = 0
    """How many it should have taken."""
    wrong_own: tuple[WrongTensor, ...] = ()
    """The rank's own gradients that are wrong, before they were averaged."""
    wrong_average: tuple[WrongTensor, ...] = ()
    """Averaged gradients that are wrong on this rank."""
    wrong_update: tuple[WrongTensor, ...] = ()
    """Parameters that are not what the step should have made of them, by the gradient that the rank has."""
    share: Factor | None = None
    """With which factor the rank's own gradient is in a wrong average: 0 if it is missing; None if no factor explains
    the average."""
    scale: Factor | None = None
    """How many times the exact average a wrong average is, if that is one number for all its elements; else None."""
