"""A few training steps of a rank, in one way to train, compared with their exact results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from distcheck.collectives.store import alike, part_of
from distcheck.collectives.training.compare import differences, digest, scale_of, shape_of, share_of
from distcheck.collectives.training.model import Tensors, TrainingRank, build, exact_sum, features
from distcheck.collectives.training.sampler import first_batches, loader_of, order_of, sampler_of, shard_of
from distcheck.collectives.training.ways import WAYS, gathered, held
from distcheck.facts.base import Missing
from distcheck.facts.training import Parameter, Training

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.utils.data.distributed import DistributedSampler

STEPS = 2
"""Each at the beginning of an epoch of its own."""
LEARNING_RATE = 2.0**-6


def train(
    name: str, me: TrainingRank, store: Store, say: Callable[[str], None], tell: Callable[[Training], None]
) -> Training | Missing:
    """Take the steps on this rank; `say` is called before each part, `tell` with what is known after it.

    Every rank calls it with the process group of all of them. Errors of torch are raised.
    """
    way, store = WAYS[name], part_of(store, name)
    lack = way.lack(me)
    if not alike(store, "lack", lack, me.rank, me.ranks) or lack:
        return Missing(reason=lack or f"torch {torch.__version__}: other ranks cannot train in this way")
    say("model")
    model = build(me)
    known = Training(
        dtype=str(me.dtype).removeprefix("torch."),
        seeds=_seeds(me.device),
        parameters=tuple(Parameter(name, shape_of(value), digest(value)) for name, value in model.named_parameters()),
        due=STEPS,
    )
    say("sampler")
    sampler = sampler_of(me.ranks)
    orders = [order_of(me.ranks, epoch) for epoch in range(STEPS)]
    known = replace(known, shards=tuple(shard_of(me, sampler, order, epoch) for epoch, order in enumerate(orders)))
    tell(known)
    # With another model on one rank, the others would wait for it in the constructor.
    model_of_all = str([(p.name, p.shape) for p in known.parameters])
    if not alike(store, "model", model_of_all, me.rank, me.ranks):
        return replace(known, stopped="the ranks have different models")
    say("wrap")
    wrapped = way.wrap(me, model)
    known = with_digests(known, model, lambda p, now: replace(p, wrapped=now))
    for so_far in _steps(name, me, known, model, wrapped, sampler, orders, store, say):
        known = so_far
        tell(known)
    return known


def _steps(
    name: str,
    me: TrainingRank,
    known: Training,
    model: torch.nn.Module,
    wrapped: torch.nn.Module,
    sampler: DistributedSampler[int],
    orders: Sequence[Sequence[int]],
    store: Store,
    say: Callable[[str], None],
) -> Iterator[Training]:
    """Take the steps; yield what is known after each, and if a rank cannot take the next one."""
    way = WAYS[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    own: Tensors = {}
    for key, value in model.named_parameters() if way.hooks else ():
        value.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient, key=key: own.__setitem__(key, gradient.detach().clone())
        )
    for epoch, order in enumerate(orders):
        number = epoch + 1
        say(f"step {number}")
        sampler.set_epoch(epoch)
        batch = next(iter(loader_of(me.ranks, sampler)), None)
        # Without a batch on one rank, the others would wait for it in the step.
        everywhere = alike(store, f"batch {number}", "none" if batch is None else "here", me.rank, me.ranks)
        if batch is None or not everywhere:
            yield replace(known, stopped=f"not all ranks have a batch for step {number}", lacks=batch is None)
            return
        optimizer.zero_grad(set_to_none=True)
        inputs, weights = features(me, batch)
        torch.autograd.backward((wrapped(inputs) * weights).sum())
        parameters = dict(model.named_parameters())
        average = {key: held(torch.zeros_like(p) if p.grad is None else p.grad) for key, p in parameters.items()}
        mine = exact_sum(me, batch)
        everybody = exact_sum(me, torch.tensor(first_batches(me.ranks, order)))
        due = {key: way.part(me, total / me.ranks) for key, total in everybody.items()}
        before = {key: held(p).clone() for key, p in parameters.items()}
        optimizer.step()
        moved = {key: value - LEARNING_RATE * average[key] for key, value in before.items()}
        wrong = tuple(differences(number, average, due, me.rounding))
        parts = {key: way.part(me, value) for key, value in mine.items()}
        known = with_digests(known, model, lambda p, now: replace(p, stepped=(*p.stepped, now)))
        known = replace(
            known,
            steps=number,
            wrong_own=known.wrong_own + (tuple(differences(number, own, mine)) if way.hooks else ()),
            wrong_average=known.wrong_average + wrong,
            wrong_update=known.wrong_update
            + tuple(differences(number, {key: held(p) for key, p in model.named_parameters()}, moved)),
            share=share_of(parts, average, due, me.ranks) if wrong else known.share,
            scale=scale_of(average, due) if wrong else known.scale,
        )
        yield known


def with_digests(known: Training, model: torch.nn.Module, add: Callable[[Parameter, str], Parameter]) -> Training:
    """Return what is known, with the digest of every parameter as it is now."""
    now = {name: digest(gathered(value)) for name, value in model.named_parameters()}
    return replace(known, parameters=tuple(add(p, now[p.name]) for p in known.parameters))


def _seeds(device: torch.device) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: digest(state) for name, state in states.items()}
