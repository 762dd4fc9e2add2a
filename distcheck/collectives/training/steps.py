"""A few training steps of a rank, in one way to train, compared with their exact results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from distcheck.collectives.store import alike, part_of
from distcheck.collectives.training.compare import differences, digest, scale_of, share_of
from distcheck.collectives.training.model import BATCH, Tensors, TrainingRank, build, exact_sum, features
from distcheck.collectives.training.ways import WAYS, gathered, held
from distcheck.facts.base import Missing
from distcheck.facts.training import Parameter, Training

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

STEPS = 2
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
        parameters=tuple(Parameter(name) for name, _ in model.named_parameters()),
        due=STEPS,
    )
    say("wrap")
    wrapped = way.wrap(me, model)
    known = _with_digests(known, model, lambda p, now: replace(p, wrapped=now))
    for so_far in _steps(name, me, known, model, wrapped, say):
        known = so_far
        tell(known)
    return known


def _steps(
    name: str,
    me: TrainingRank,
    known: Training,
    model: torch.nn.Module,
    wrapped: torch.nn.Module,
    say: Callable[[str], None],
) -> Iterator[Training]:
    """Take the steps; yield what is known after each."""
    way = WAYS[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    own: Tensors = {}
    for key, value in model.named_parameters() if way.hooks else ():
        value.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient, key=key: own.__setitem__(key, gradient.detach().clone())
        )
    for number in range(1, STEPS + 1):
        say(f"step {number}")
        whole = torch.arange(BATCH * me.ranks) + number * BATCH * me.ranks
        batch = whole[me.rank :: me.ranks]
        optimizer.zero_grad(set_to_none=True)
        inputs, weights = features(me, batch)
        torch.autograd.backward((wrapped(inputs) * weights).sum())
        parameters = dict(model.named_parameters())
        average = {key: held(torch.zeros_like(p) if p.grad is None else p.grad) for key, p in parameters.items()}
        mine = exact_sum(me, batch)
        everybody = exact_sum(me, whole)
        due = {key: way.part(me, total / me.ranks) for key, total in everybody.items()}
        before = {key: held(p).clone() for key, p in parameters.items()}
        optimizer.step()
        moved = {key: value - LEARNING_RATE * average[key] for key, value in before.items()}
        wrong = tuple(differences(number, average, due, me.rounding))
        parts = {key: way.part(me, value) for key, value in mine.items()}
        known = _with_digests(known, model, lambda p, now: replace(p, stepped=(*p.stepped, now)))
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


def _with_digests(known: Training, model: torch.nn.Module, add: Callable[[Parameter, str], Parameter]) -> Training:
    """Return what is known, with the digest of every parameter as it is now."""
    now = {name: digest(gathered(value)) for name, value in model.named_parameters()}
    return replace(known, parameters=tuple(add(p, now[p.name]) for p in known.parameters))
