"""What is measured in the groups of a mesh; imported without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.mesh import Mesh, Role, role

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTER_SECONDS = 8.0
"""How long the first rank of a group waits for the others; below the 10 s after which a gate ends a hang."""
_OPERATIONS: dict[Role, tuple[str, ...]] = {
    "tensor": ("reduce_scatter", "all_gather"),
    "expert": ("all_to_all",),
    "context": ("all_gather",),
    "shard": ("all_gather", "reduce_scatter"),
    "pipeline": ("send_recv",),
}
"""The operations with most of a dimension's traffic.

Sources: reduce-scatter and all-gather of sequence parallelism in place of tensor parallelism's all-reduce
(https://arxiv.org/abs/2205.05198, section 4.2.2), all-to-all of the experts (https://arxiv.org/abs/2006.16668),
all-gather and reduce-scatter of sharded parameters (https://docs.pytorch.org/docs/stable/fsdp.html).
"""


def operations_of(dimension: str) -> tuple[str, ...]:
    """Return what a dimension's groups are measured with; all_reduce for data parallelism and for unknown names."""
    return _OPERATIONS.get(role(dimension), ("all_reduce",))


def measured(mesh: Mesh | None) -> Iterator[tuple[str, str]]:
    """Yield each dimension and operation to measure; a dimension of one rank has no traffic."""
    for dimension in mesh.names if mesh else ():
        if mesh and mesh.size(dimension) > 1:
            yield from ((dimension, op) for op in operations_of(dimension))


def inside(name: str, dimension: str) -> str:
    """Return the name of an operation in the groups of a dimension: all_reduce in dp."""
    return f"{name} in {dimension}"
