"""The task of each local rank: the plan, with its own number, store and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distcheck.collectives.plan import Task
    from distcheck.facts.placement import Placement


def tasks_for(
    ranks: Sequence[Placement],
    template: Task,
    *,
    store: tuple[str, int] | None,
    gpus: Mapping[int, int | None],
    parts: Mapping[int, tuple[int, int]] | None = None,
) -> list[Task]:
    """Return each rank's task; `gpus` maps ranks to CUDA ordinals.

    `parts` maps ranks to their number in a subset of the ranks and its size; None means all ranks. `store` is the
    store's address; None for the rank that opens it.
    """
    tasks = []
    for placement in ranks:
        rank = placement.rank or 0
        number, size = (rank, template.world_size) if parts is None else parts[rank]
        tasks.append(
            msgspec.structs.replace(
                template,
                rank=number,
                world_size=size,
                local_rank=placement.local_rank or 0,
                store=store,
                gpu=gpus.get(rank),
            )
        )
    return tasks
