"""The model and its data: whole numbers, so that every gradient has one exact value.

The model is a few linear layers side by side, and its loss is a weighted sum of their outputs. So its gradients do not
depend on its weights, and with whole numbers as data they are whole numbers in every step, exact in any order of
addition. The gradient of a sum over samples is the sum of the gradients: what the ranks should have after averaging is
the gradient of all their samples together, divided by their number.

1 / ranks is exact in binary if the number of ranks is a power of two. Otherwise the step uses float64, where the
roundings of all ranks together are far below the smallest difference that a fault makes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensors = dict[str, torch.Tensor]

SEED = 20_240_229
FEATURES, WIDTHS = 128, (512, 128, 3)
"""The numbers of inputs and of outputs of the layers: tensors of very different sizes."""
BATCH = 2
"""Samples of a rank in a step."""
_CHUNK = 4096
"""Samples whose numbers are in memory at the same time."""


class TrainingRank(NamedTuple):
    """A rank among those that average their gradients."""

    device: torch.device
    rank: int
    ranks: int

    @property
    def dtype(self) -> torch.dtype:
        """The data type in which the average is exact, or rounded far below the smallest fault."""
        return torch.float64 if self.ranks & (self.ranks - 1) else torch.float32

    @property
    def rounding(self) -> float:
        """The relative error of the average of numbers of one sign; 0 where all of it is exact."""
        return 0.0 if self.dtype == torch.float32 else (self.ranks + 4) * torch.finfo(self.dtype).eps


class Layers(torch.nn.Module):
    """Linear layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(FEATURES, width) for width in WIDTHS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all layers, one after the other."""
        return torch.cat([layer(inputs) for layer in self.layers], dim=1)


def build(me: TrainingRank) -> Layers:
    """Build the model from the seed, as a training script does."""
    torch.manual_seed(SEED)
    return Layers().to(me.device, me.dtype)


def features(me: TrainingRank, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs (1 to 15) and the weights of the outputs (1 to 3) of samples, one row each.

    A sample's numbers depend on its index only, without a visible pattern, so every rank's gradient is different.
    """
    indices = indices.to(me.device, torch.int64)
    columns = torch.arange(FEATURES + sum(WIDTHS), device=me.device, dtype=torch.int64)
    mixed = (indices[:, None] * 1_000_003 + columns[None, :] * 7_919 + 1) * 2_654_435_761 % (1 << 32)
    numbers = (mixed ^ (mixed >> 15)) * 2_246_822_519 % (1 << 32) >> 13
    inputs, weights = numbers[:, :FEATURES] % 15 + 1, numbers[:, FEATURES:] % 3 + 1
    return inputs.to(me.dtype), weights.to(me.dtype)


def exact_sum(me: TrainingRank, indices: torch.Tensor) -> Tensors:
    """Return the gradient of the sum over samples, by hand: every number in it is whole and below 2**24."""
    total: Tensors = {}
    for chunk in torch.split(indices, _CHUNK):
        inputs, weights = features(me, chunk)
        for number, own in enumerate(torch.split(weights, list(WIDTHS), dim=1)):
            for name, part in (("weight", own.t() @ inputs), ("bias", own.sum(0))):
                key = f"layers.{number}.{name}"
                total[key] = total[key] + part if key in total else part
    return total
