"""What one training step did on a rank: its model, its share of the data set, and its gradients."""

from __future__ import annotations

from distcheck.facts.base import Count, Factor, Facts


class Parameter(Facts, frozen=True):
    """One parameter on one rank; each digest is a hash of its bytes."""

    name: str
    shape: str
    """128x64."""
    built: str
    """The digest after the model was built from the common seed."""
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


class Shard(Facts, frozen=True):
    """A rank's part of the data set in one epoch, as its sampler returned it."""

    epoch: Count
    taken: Count
    """How many indices it got, the padding counted."""
    due: Count
    """How many it should have got."""
    foreign: Count
    """How many of them belong to other ranks."""
    mark: str
    """The sum of a hash of each index that it got, as a hexadecimal number: it is modular, and shards add up."""
    order: str
    """The digest of the order of the whole data set."""
    whole: str = ""
    """What the marks of all ranks add up to; only from rank 0."""


class Leftovers(Facts, frozen=True):
    """What a process group left in a rank's process after it was destroyed; all empty if nothing."""

    threads: tuple[str, ...] = ()
    """Their names."""
    sockets: Count = 0
    children: tuple[str, ...] = ()
    """The names of processes."""


class Training(Facts, frozen=True):
    """A few steps of a small model on one rank."""

    dtype: str
    seeds: dict[str, str] = {}
    """The digest of the state of each random number generator after the model was built from the common seed."""
    parameters: tuple[Parameter, ...] = ()
    shards: tuple[Shard, ...] = ()
    steps: Count = 0
    """How many steps the rank took."""
    due: Count = 0
    """How many it should have taken."""
    wrong_own: tuple[WrongTensor, ...] = ()
    """The rank's own gradients that are wrong, before they were averaged."""
    wrong_output: tuple[WrongTensor, ...] = ()
    """Outputs of layers that are divided among ranks, and are wrong on this rank."""
    wrong_average: tuple[WrongTensor, ...] = ()
    """Averaged gradients that are wrong on this rank."""
    wrong_update: tuple[WrongTensor, ...] = ()
    """Parameters that are not what the step should have made of them, by the gradient that the rank has."""
    share: Factor | None = None
    """With which factor the rank's own gradient is in a wrong average: 0 if it is missing; None if no factor explains
    the average."""
    scale: Factor | None = None
    """How many times the exact average a wrong average is, if that is one number for all its elements; else None."""
    stopped: str = ""
    """Why this rank took fewer steps than it should: what it saw of the other ranks; empty otherwise."""
    lacks: bool = False
    """Whether this rank had no batch for the next step."""
