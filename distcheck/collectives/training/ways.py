"""The ways to train on many ranks: what wraps the model, and which part of a parameter a rank then holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distcheck.collectives.training.model import Layers, TrainingRank


class Way(NamedTuple):
    """A way to train."""

    wrap: Callable[[TrainingRank, Layers], torch.nn.Module]
    part: Callable[[TrainingRank, torch.Tensor], torch.Tensor]
    """Returns the part of a whole parameter that a rank holds."""
    hooks: bool
    """Whether a hook of a parameter gets the rank's own gradient."""
    lack: Callable[[TrainingRank], str]
    """Returns why this torch cannot train in this way, empty if it can."""


def _data_parallel(me: TrainingRank, model: Layers) -> torch.nn.Module:
    return DistributedDataParallel(model, device_ids=[me.device] if me.device.type == "cuda" else None)


def _sharded(me: TrainingRank, model: Layers) -> torch.nn.Module:
    from torch.distributed import fsdp

    mesh = _mesh(me)
    for part in (*model.layers, model):
        fsdp.fully_shard(part, mesh=mesh)
    return model


def _mesh(me: TrainingRank) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(me.device.type, (me.ranks,))


def _shard(me: TrainingRank, whole: torch.Tensor) -> torch.Tensor:
    """Return a rank's rows: as many as torch.chunk gives it, which may be none."""
    chunks = torch.chunk(whole, me.ranks)
    return chunks[me.rank] if me.rank < len(chunks) else whole[:0]


def _no_fully_shard(me: TrainingRank) -> str:
    from torch.distributed import fsdp

    if dist.get_backend() == "mpi":  # it cannot average (pytorch #152594)
        return f"torch {torch.__version__}: FSDP2 is not tried with MPI"
    if not hasattr(fsdp, "fully_shard"):
        return f"torch {torch.__version__} has no fully_shard; 2.6 and later have it"
    if me.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        return f"torch {torch.__version__} has no fully_shard for CPUs"
    return refusal(lambda: _mesh(me))


WAYS = {
    "DDP": Way(_data_parallel, lambda _me, whole: whole, hooks=True, lack=lambda _me: ""),
    "FSDP2": Way(_sharded, _shard, hooks=False, lack=_no_fully_shard),
}
"""By the name in reports."""


def refusal(work: Callable[[], object]) -> str:
    """Do what every rank does or refuses alike, such as making a mesh; return why torch refuses, empty if it does not.

    Torch makes no mesh of GPUs if the number of ranks is not a multiple of the GPUs that a process sees.
    """
    try:
        work()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"torch {torch.__version__}: {' '.join(str(error).split())[:200]}"
    return ""


def held(tensor: Any) -> torch.Tensor:
    """Return the part of a parameter, or of its gradient, that this rank holds."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def gathered(tensor: Any) -> torch.Tensor:
    """Return a whole parameter, from all ranks that hold parts of it."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()
