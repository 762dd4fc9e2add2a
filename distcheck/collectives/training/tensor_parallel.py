"""Training steps with tensor parallel layers (`parallelize_module`) in the groups of a mesh.

All ranks take the same batch, so the parts of a layer together must do what the whole layer does. The weights are whole
numbers too, so that outputs are exact: a column-parallel layer gathers its outputs, a row-parallel layer sums them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

from distcheck.collectives.store import alike
from distcheck.collectives.training.compare import differences, digest, shape_of
from distcheck.collectives.training.model import (
    WIDTHS,
    Layers,
    Tensors,
    TrainingRank,
    build,
    exact_sum,
    features,
)
from distcheck.collectives.training.sampler import BATCH
from distcheck.collectives.training.steps import LEARNING_RATE, STEPS, with_digests
from distcheck.collectives.training.ways import held, refusal
from distcheck.facts.base import Missing
from distcheck.facts.mesh import Mesh, role
from distcheck.facts.training import Parameter, Training

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_SCALE = 64.0
"""By which weights, all below 0.1, are multiplied before they are rounded."""
_FINEST = 2.0**20
"""Far finer than the weights, which are multiples of the learning rate."""
_DIVIDED = {"layers.0.weight": 0, "layers.0.bias": 0, "layers.1.weight": 1}
"""By parameter: the dimension that is divided among the ranks; the other parameters are whole on every rank."""


def dimension_of(mesh: Mesh | None) -> str:
    """Return the mesh's dimension of tensor parallel layers, empty without one."""
    names = mesh.sizes if mesh is not None else {}
    return next((name for name, size in names.items() if role(name) == "tensor" and size > 1), "")


def train(
    mesh: Mesh,
    rank: int,
    device: torch.device,
    store: Store,
    say: Callable[[str], None],
    tell: Callable[[Training], None],
) -> Training | Missing:
    """Take the steps on this rank, in its group of the mesh; every rank calls it.

    `say` is called before each part, `tell` with what is known after each step. Errors of torch are raised.
    """
    say("groups")
    dimension, groups = dimension_of(mesh), list[Any]()
    lack = _lack() or refusal(lambda: groups.append(_groups(mesh, dimension, device)))
    if not alike(store, "TP", lack, rank, mesh.ranks) or lack:
        return Missing(reason=lack or f"torch {torch.__version__}: other ranks cannot divide layers")
    me = TrainingRank(device, mesh.coordinates(rank)[dimension], mesh.size(dimension))
    say("model")
    model = build(me)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_((value * _SCALE).round())
    known = Training(
        dtype=str(me.dtype).removeprefix("torch."),
        parameters=tuple(Parameter(name, shape_of(value), digest(value)) for name, value in model.named_parameters()),
        due=STEPS,
    )
    whole = {name: value.detach().clone() for name, value in model.named_parameters()}
    say("wrap")
    _parallelize(model, groups[0])
    known = with_digests(known, model, lambda p, now: replace(p, wrapped=now))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for number in range(1, STEPS + 1):
        say(f"step {number}")
        batch = torch.arange(BATCH) + number * BATCH
        optimizer.zero_grad(set_to_none=True)
        inputs, weights = features(me, batch)
        outputs = model(inputs)
        torch.autograd.backward((outputs * weights).sum())
        if me.rounding:  # each rank adds its share of the bias, which is rounded
            outputs = (outputs * _FINEST).round() / _FINEST
        due = exact_sum(me, batch)
        expected = {name: _part(me, name, value) for name, value in due.items()}
        parameters = dict(model.named_parameters())
        gradients = {name: held(torch.zeros_like(p) if p.grad is None else p.grad) for name, p in parameters.items()}
        output = _whole_outputs(whole, inputs)
        optimizer.step()
        whole = {name: value - LEARNING_RATE * due[name] for name, value in whole.items()}
        now = {name: held(value) for name, value in model.named_parameters()}
        moved = {name: _part(me, name, value) for name, value in whole.items()}
        known = with_digests(known, model, lambda p, now: replace(p, stepped=(*p.stepped, now)))
        wrong = tuple(differences(number, gradients, expected))
        known = replace(
            known,
            steps=number,
            wrong_output=known.wrong_output
            + tuple(differences(number, _by_layer(outputs.detach()), _by_layer(output))),
            wrong_own=known.wrong_own + wrong,
            wrong_update=known.wrong_update + (() if wrong else tuple(differences(number, now, moved))),
        )
        tell(known)
    return known


def _lack() -> str:
    """Return why this torch cannot divide layers, empty if it can."""
    if torch.__version__ < "2.6":
        return f"torch {torch.__version__} is older than 2.6, from which on tensor parallel layers are tried"
    if dist.get_backend() == "mpi":
        return f"torch {torch.__version__}: tensor parallel layers are not tried with MPI"
    return ""


def _groups(mesh: Mesh, dimension: str, device: torch.device) -> Any:
    """Return torch's mesh of this rank's group of the dimension; every rank creates all groups in the same order."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.sizes))[dimension]


def _parallelize(model: Layers, group: Any) -> None:
    """Divide the first two layers among the ranks of a group."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {
        "layers.0": ColwiseParallel(output_layouts=Replicate()),
        "layers.1": RowwiseParallel(input_layouts=Replicate()),
    }
    parallelize_module(model, group, plan)


def _part(me: TrainingRank, name: str, whole: torch.Tensor) -> torch.Tensor:
    """Return the part of a parameter that a rank holds."""
    if name not in _DIVIDED:
        return whole
    chunks = torch.chunk(whole, me.ranks, _DIVIDED[name])
    return chunks[me.rank] if me.rank < len(chunks) else whole.narrow(_DIVIDED[name], 0, 0)


def _whole_outputs(whole: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    layers = range(len(WIDTHS))
    return torch.cat([inputs @ whole[f"layers.{n}.weight"].t() + whole[f"layers.{n}.bias"] for n in layers], dim=1)


def _by_layer(outputs: torch.Tensor) -> Tensors:
    return {f"layers.{number}": part for number, part in enumerate(torch.split(outputs, list(WIDTHS), dim=1))}
