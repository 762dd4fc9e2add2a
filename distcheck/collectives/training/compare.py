"""Comparison of tensors: with exact results on one rank, and by digests between ranks."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from distcheck.facts.training import WrongTensor

if TYPE_CHECKING:
    from distcheck.collectives.training.model import Tensors

_MOST = 1e9
"""No larger factor explains an average; not a number is no explanation either."""


def differences(step: int, got: Tensors, due: Tensors, rounding: float = 0.0) -> Iterator[WrongTensor]:
    """Yield the tensors that differ from what is due by more than its relative rounding error."""
    for name, expected in due.items():
        value = got.get(name)
        if value is None or value.shape != expected.shape:
            yield WrongTensor(name, step, expected.numel(), expected.numel(), "no such tensor", "one of its shape")
            continue
        # Not a number is unequal to everything, and no comparison with it is true.
        wrong = ~((value - expected).abs() <= rounding * expected.abs())
        if count := int(wrong.sum().item()):
            at = int(wrong.flatten().nonzero()[0].item())
            first, right = (float(t.flatten()[at].item()) for t in (value, expected))
            yield WrongTensor(name, step, expected.numel(), count, f"{first:.9g}", f"{right:.9g}")


def share_of(own: Tensors, average: Tensors, due: Tensors, ranks: int) -> float | None:
    """Return with which factor a rank's own gradient is in the average, None if no factor explains it."""
    names = [name for name in due if due[name].numel() and average[name].shape == due[name].shape]
    if not names:
        return None
    off = torch.cat([(average[name] - due[name]).flatten() for name in names])
    mine = torch.cat([own[name].flatten() / ranks for name in names])
    factor = float((off[0] / mine[0]).item())
    if not abs(factor) < _MOST:
        return None
    unexplained = float((off - factor * mine).abs().max().item())
    return None if unexplained > 1e-3 * abs(factor) * float(mine.min().item()) else round(1 + factor, 6)


def scale_of(average: Tensors, due: Tensors) -> float | None:
    """Return how many times the exact average an average is, None if that differs between its elements."""
    names = [name for name in due if due[name].numel() and average[name].shape == due[name].shape]
    if not names:
        return None
    ratios = torch.cat([(average[name] / due[name]).flatten() for name in names])
    scale = float(ratios[0].item())
    same = abs(scale) < _MOST and float((ratios - scale).abs().max().item()) <= 1e-6 * abs(scale)
    return round(scale, 6) if same else None


def digest(tensor: torch.Tensor) -> str:
    """Return a short hash of a tensor's bytes, in hexadecimal digits."""
    here = tensor.detach().cpu().contiguous()
    content = ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())  # NumPy may be missing
    return hashlib.blake2b(content, digest_size=8).hexdigest()
