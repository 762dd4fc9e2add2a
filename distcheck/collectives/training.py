"""A training step: a small model under DistributedDataParallel, as every tutorial builds it, with exact expectations.

The model is a few linear layers side by side, and its loss is a weighted sum of their outputs. So its gradients do not
depend on its weights, and with whole numbers as data they are whole numbers in every step, exact in any order of
addition. The gradient of a sum over samples is the sum of the gradients: what the ranks should have after averaging is
the gradient of all their samples together, divided by their number. Every rank computes it by itself, from the indices
that all ranks should have drawn.

1 / ranks is exact in binary if the number of ranks is a power of two. Otherwise the step uses float64, where the
roundings of all ranks together are far below the smallest difference that a fault makes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch
from msgspec.structs import replace
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from distcheck.collectives.silence import without_warnings
from distcheck.collectives.store import alike
from distcheck.facts.training import Parameter, Shard, Training, WrongTensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

with without_warnings(), contextlib.suppress(Exception):  # if it cannot be imported, the constructor's error shows it
    # The constructor of DistributedDataParallel imports it since torch 2.3, for about a second of CPU time.
    import torch._dynamo

Tensors = dict[str, torch.Tensor]

SEED = 20_240_229
FEATURES, WIDTHS = 128, (512, 128, 3)
"""The numbers of inputs and of outputs of the layers: tensors of very different sizes."""
STEPS = 2
"""Each at the beginning of an epoch of its own."""
_BATCH = 2
_SHARD = 16
"""Indices per rank and epoch; the data set has one less in total, so that one is padding."""
_LEARNING_RATE = 2.0**-6
_CHUNK = 4096
_MOST = 1e9
"""No larger factor explains an average; not a number is no explanation either."""
_MASK = (1 << 64) - 1


class TrainingRank(NamedTuple):
    """Where a rank trains."""

    device: torch.device
    rank: int
    ranks: int

    @property
    def dtype(self) -> torch.dtype:
        """The data type in which the average is exact, or rounded far below the smallest fault."""
        return torch.float64 if self.ranks & (self.ranks - 1) else torch.float32


class Layers(torch.nn.Module):
    """Linear layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(FEATURES, width) for width in WIDTHS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all layers, one after the other."""
        return torch.cat([layer(inputs) for layer in self.layers], dim=1)


def train(place: TrainingRank, store: Store, say: Callable[[str], None], tell: Callable[[Training], None]) -> Training:
    """Take the steps on this rank; `say` is called before each part, `tell` with what is known before the first step.

    Every rank calls it with the process group of all of them. Errors of torch are raised.
    """
    say("model")
    model = build(place)
    known = Training(
        dtype=str(place.dtype).removeprefix("torch."),
        seeds=_seeds(place.device),
        parameters=tuple(Parameter(name, shape_of(value), digest(value)) for name, value in model.named_parameters()),
        due=STEPS,
    )
    say("sampler")
    sampler: DistributedSampler[int] = DistributedSampler(_data(place.ranks))  # type: ignore[arg-type]  # a Sized
    orders = [_order(place.ranks, epoch) for epoch in range(STEPS)]
    known = replace(known, shards=tuple(_shard(place, sampler, order, n) for n, order in enumerate(orders)))
    tell(known)
    # With another model on one rank, the others would wait for it in the constructor.
    model_of_all = str([(p.name, p.shape) for p in known.parameters])
    if not alike(store, "model", model_of_all, place.rank, place.ranks):
        return replace(known, stopped="the ranks have different models")
    say("wrap")
    wrapped = DistributedDataParallel(model, device_ids=[place.device] if place.device.type == "cuda" else None)
    known = _with_digests(known, model, lambda p, now: replace(p, wrapped=now))
    for so_far in _steps(place, known, model, wrapped, sampler, orders, store, say):
        known = so_far
        tell(known)
    return known


def _steps(
    place: TrainingRank,
    known: Training,
    model: torch.nn.Module,
    wrapped: torch.nn.Module,
    sampler: DistributedSampler[int],
    orders: Sequence[Sequence[int]],
    store: Store,
    say: Callable[[str], None],
) -> Iterator[Training]:
    """Take the steps; yield what is known after each, and if a rank cannot take the next one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    own: Tensors = {}
    for name, value in model.named_parameters():
        value.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient, name=name: own.__setitem__(name, gradient.detach().clone())
        )
    for epoch, order in enumerate(orders):
        number = epoch + 1
        say(f"step {number}")
        sampler.set_epoch(epoch)
        batch = next(iter(_loader(place, sampler)), None)
        # Without a batch on one rank, the others would wait for it in the step.
        everywhere = alike(store, f"batch {number}", "none" if batch is None else "here", place.rank, place.ranks)
        if batch is None or not everywhere:
            yield replace(known, stopped=f"not all ranks have a batch for step {number}", lacks=batch is None)
            return
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(take(wrapped, place, batch))
        average = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
        due_own = exact_sum(place, batch)
        everybody = torch.tensor([order[n * place.ranks + r] for r in range(place.ranks) for n in range(_BATCH)])
        due = {name: total / place.ranks for name, total in exact_sum(place, everybody).items()}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        moved = {name: value - _LEARNING_RATE * average[name] for name, value in before.items()}
        now = {name: p.detach() for name, p in model.named_parameters()}
        wrong_average = tuple(differences(number, average, due, _rounding(place)))
        share = _share(place, average, due, due_own) if wrong_average else known.share
        known = _with_digests(known, model, lambda p, now: replace(p, stepped=(*p.stepped, now)))
        known = replace(
            known,
            steps=number,
            wrong_own=known.wrong_own + tuple(differences(number, own, due_own)),
            wrong_average=known.wrong_average + wrong_average,
            wrong_update=known.wrong_update + tuple(differences(number, now, moved)),
            share=share,
        )
        yield known


def _with_digests(known: Training, model: torch.nn.Module, add: Callable[[Parameter, str], Parameter]) -> Training:
    """Return what is known, with the digest of every parameter as it is now."""
    now = {name: digest(value) for name, value in model.named_parameters()}
    return replace(known, parameters=tuple(add(p, now[p.name]) for p in known.parameters))


def build(place: TrainingRank) -> torch.nn.Module:
    """Build the model from the seed, as a training script does."""
    torch.manual_seed(SEED)
    return Layers().to(place.device, place.dtype)


def take(model: torch.nn.Module, place: TrainingRank, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch of indices."""
    inputs, weights = features(place, batch)
    loss: torch.Tensor = (model(inputs) * weights).sum()
    return loss


def features(place: TrainingRank, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs (1 to 15) and the weights of the outputs (1 to 3) of samples, one row each.

    A sample's numbers depend on its index only, without a visible pattern, so every rank's gradient is different.
    """
    indices = indices.to(place.device, torch.int64)
    columns = torch.arange(FEATURES + sum(WIDTHS), device=place.device, dtype=torch.int64)
    mixed = (indices[:, None] * 1_000_003 + columns[None, :] * 7_919 + 1) * 2_654_435_761 % (1 << 32)
    numbers = (mixed ^ (mixed >> 15)) * 2_246_822_519 % (1 << 32) >> 13
    inputs, weights = numbers[:, :FEATURES] % 15 + 1, numbers[:, FEATURES:] % 3 + 1
    return inputs.to(place.dtype), weights.to(place.dtype)


def exact_sum(place: TrainingRank, indices: torch.Tensor) -> Tensors:
    """Return the gradient of the sum over samples, by hand: every number in it is whole and below 2**24."""
    total: Tensors = {}
    for chunk in torch.split(indices, _CHUNK):
        inputs, weights = features(place, chunk)
        for number, own in enumerate(torch.split(weights, list(WIDTHS), dim=1)):
            for name, part in (("weight", own.t() @ inputs), ("bias", own.sum(0))):
                key = f"layers.{number}.{name}"
                total[key] = total[key] + part if key in total else part
    return total


def differences(step: int, got: Tensors, due: Tensors, rounding: float = 0.0) -> Iterator[WrongTensor]:
    """Yield the tensors that differ from what is due by more than its relative rounding error."""
    for name, expected in due.items():
        value = got.get(name)
        if value is None or value.shape != expected.shape:
            yield WrongTensor(name, step, expected.numel(), expected.numel(), "no gradient", "a gradient")
            continue
        # Not a number is unequal to everything, and no comparison with it is true.
        wrong = ~((value - expected).abs() <= rounding * expected.abs())
        if count := int(wrong.sum().item()):
            at = int(wrong.flatten().nonzero()[0].item())
            first, right = (float(t.flatten()[at].item()) for t in (value, expected))
            yield WrongTensor(name, step, expected.numel(), count, f"{first:.9g}", f"{right:.9g}")


def _rounding(place: TrainingRank) -> float:
    """Return the relative error of the average of numbers of one sign; 0 where all of it is exact."""
    return 0.0 if place.dtype == torch.float32 else (place.ranks + 4) * torch.finfo(place.dtype).eps


def _share(place: TrainingRank, average: Tensors, due: Tensors, own: Tensors) -> float | None:
    """Return with which factor this rank's own gradient is in the average, None if no factor explains it."""
    parts = [(average[name] - due[name], own[name] / place.ranks) for name in due]
    off, mine = (torch.cat([part.flatten() for part in side]) for side in zip(*parts, strict=True))
    factor = float((off[0] / mine[0]).item())
    if not abs(factor) < _MOST or float((off - factor * mine).abs().max().item()) > 1e-3 * abs(factor) * float(
        mine.min().item()
    ):
        return None
    return round(1 + factor, 6)


def _data(ranks: int) -> range:
    return range(_SHARD * ranks - 1)


def _loader(place: TrainingRank, sampler: DistributedSampler[int]) -> DataLoader[int]:
    return DataLoader(_data(place.ranks), batch_size=_BATCH, sampler=sampler)  # type: ignore[arg-type]  # a Sized


def _order(ranks: int, epoch: int) -> list[int]:
    """Return the order of the whole data set with its padding; every rank takes each `ranks`-th from its own on."""
    data = _data(ranks)
    whole: DistributedSampler[int] = DistributedSampler(data, num_replicas=1, rank=0)  # type: ignore[arg-type]  # a Sized
    whole.set_epoch(epoch)
    order = list(whole)
    return order + order[: -len(order) % ranks]


def _shard(place: TrainingRank, sampler: DistributedSampler[int], order: Sequence[int], epoch: int) -> Shard:
    sampler.set_epoch(epoch)
    taken, due = list(sampler), order[place.rank :: place.ranks]
    return Shard(
        epoch=epoch,
        taken=len(taken),
        due=len(due),
        foreign=(Counter(taken) - Counter(due)).total(),
        mark=_mark(taken),
        order=hashed(",".join(map(str, order)).encode()),
        whole=_mark(order) if place.rank == 0 else "",
    )


def _mark(indices: Sequence[int]) -> str:
    """Return the sum of a 64-bit hash of each index: two sets of indices have the same only by chance."""
    total = 0
    for index in indices:
        mixed = (index + 1) * 0x9E3779B97F4A7C15 & _MASK  # splitmix64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        total += (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return f"{total & _MASK:x}"


def _seeds(device: torch.device) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: digest(state) for name, state in states.items()}


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's bytes."""
    here = tensor.detach().cpu().contiguous()
    return hashed(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))  # NumPy may be missing


def hashed(content: bytes) -> str:
    """Return a short hash in hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def shape_of(tensor: torch.Tensor) -> str:
    """Return a shape as 128x64."""
    return "x".join(map(str, tensor.shape))
