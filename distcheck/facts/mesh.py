"""A mesh: how the ranks of a job lie along the dimensions of its parallelism.

Rank numbers count the innermost dimension first, as ``init_device_mesh`` does (torch/distributed/device_mesh.py:
``torch.arange(world).view(shape)``). So a group of a dimension, the ranks that differ in this dimension only, is a
range: its step is the product of the sizes further in.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal

from msgspec import Meta

from distcheck.facts.base import Facts

Size = Annotated[int, Meta(ge=0, le=1 << 20)]
Sizes = Annotated[dict[str, Size], Meta(max_length=8)]
"""By dimension; torch and Megatron have no job with more, and a job file may come from anybody."""
Role = Literal["tensor", "expert", "context", "shard", "replicate", "data", "pipeline", "node", "rail", "other"]
_ROLES: dict[str, Role] = {
    "tp": "tensor", "etp": "tensor", "tensor": "tensor", "mp": "tensor", "tensor_parallel": "tensor",
    "ep": "expert", "expert": "expert", "expert_parallel": "expert",
    "cp": "context", "sp": "context", "context": "context", "sequence": "context",
    "shard": "shard", "dp_shard": "shard", "fsdp": "shard", "efsdp": "shard",
    "replicate": "replicate", "dp_replicate": "replicate", "ddp": "replicate",
    "dp": "data", "edp": "data", "data": "data", "data_parallel": "data",
    "pp": "pipeline", "pipe": "pipeline", "pipeline": "pipeline", "stage": "pipeline",
    "node": "node", "rail": "rail",
}  # fmt: skip


class Mesh(Facts, frozen=True):
    """The dimensions of a job, and the groups of ranks that they make."""

    sizes: Sizes
    """Size by dimension, outermost first, so that the last one varies fastest; 0: as many as the others leave, and for
    node and rail: as the ranks are placed."""
    experts: Sizes = {}
    """The dimensions of the experts' own mesh over the same ranks, outermost first; empty without one."""
    order: str = ""
    """Megatron's order of the dimensions, innermost first; empty if the sizes are in torch's order."""

    def __str__(self) -> str:
        """Return the mesh as --mesh takes it: pp=2,dp=4,tp=8."""
        return ",".join(
            name if not size and name in {"node", "rail"} else f"{name}={size or -1}"
            for name, size in self.sizes.items()
        )

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return prod(self.sizes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions, outermost first; those of the experts' own mesh are last."""
        return (*self.sizes, *(name for name in self.experts if name not in self.sizes))

    def size(self, name: str) -> int:
        """Return how many ranks a group of a dimension has."""
        return self._view(name)[name]

    def step(self, name: str) -> int:
        """Return the distance between neighbours in a group of a dimension."""
        view = self._view(name)
        inner = list(view)[list(view).index(name) + 1 :]
        return prod(view[other] for other in inner)

    def groups(self, name: str) -> list[range]:
        """Return the groups of a dimension, by their first rank; each has its ranks in the order of their group rank.

        Dimension dp of dp=2,tp=2 has the groups (0, 2) and (1, 3).
        """
        step, span = self.step(name), self.step(name) * self.size(name)
        return [
            range(first, first + span, step)
            for start in range(0, self.ranks, span)
            for first in range(start, start + step)
        ]

    def group_of(self, rank: int, name: str) -> range:
        """Return the group of a rank in a dimension."""
        step, size = self.step(name), self.size(name)
        first = rank - rank // step % size * step
        return range(first, first + step * size, step)

    def group_number(self, rank: int, name: str) -> int:
        """Return the place of a rank's group among the groups of a dimension, as `groups` lists them."""
        step = self.step(name)
        return rank // (step * self.size(name)) * step + rank % step

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinate in each dimension, which is also its group rank there.

        Rank 5 of pp=2,dp=2,tp=2 has pp 1, dp 0, tp 1.
        """
        found: dict[str, int] = {}
        for view in (self.experts, self.sizes):
            left = rank
            for name in reversed(view):
                left, found[name] = divmod(left, view[name])
        return {name: found[name] for name in self.names}

    def _view(self, name: str) -> dict[str, int]:
        return self.sizes if name in self.sizes else self.experts


def role(name: str) -> Role:
    """Return what a dimension is for, by its usual names; other for any other name."""
    return _ROLES.get(name.lower(), "other")


def placed(nodes: list[str]) -> Mesh | None:
    """Return the mesh of nodes and rails, from each rank's node; None if the placement is no mesh.

    A group of dimension node is the ranks of a node, one of dimension rail the ranks with one number on their nodes.
    """
    local = len(nodes) // (len(set(nodes)) or 1)
    if not local or len(nodes) != local * len(set(nodes)):
        return None
    for mesh in (
        Mesh({"rail": len(nodes) // local, "node": local}),
        Mesh({"node": local, "rail": len(nodes) // local}),
    ):
        if all(len({nodes[rank] for rank in group}) == 1 for group in mesh.groups("node")):
            return mesh
    return None
