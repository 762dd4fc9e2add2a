"""A trial: each process runs the collectives again in a subset of the ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distcheck.collectives.plan import Task
from distcheck.launch.local.tasks import tasks_for
from distcheck.rollcall.protocol import RunReport, StartTrial
from distcheck.run import ras
from distcheck.selection.alternatives import VARIABLES

if TYPE_CHECKING:
    from distcheck.launch.local.supervisor import LocalRanks
    from distcheck.run.context import Session

_GRACE_SECONDS = 0.5
"""Between the first failure and the end of this process's ranks: time for them to report what they saw."""


async def take_part(
    run: Session, trial: StartTrial, leader_address: str, halted: asyncio.Event, opened: Callable[[int], None]
) -> RunReport:
    """Run this process's ranks in a trial and return their report.

    Args:
        run: this process's run, whose ranks are forked again.
        trial: what to run.
        leader_address: the leader's address; an empty address in the trial stands for it.
        halted: ends the trial when set.
        opened: called with the store's port if this process opens the store.
    """
    local = run.local
    if local is None:
        return RunReport({}, (), trial=trial.number)
    error = await local.wait_imported(trial.seconds, halted)
    if error:
        return replace(local.report(error=error), trial=trial.number)
    await local.again()
    with ras.addresses(trial.plan.backend, trial.parts) as ports:
        await _measure(run, local, trial, leader_address, halted, opened, ports)
    return replace(local.report(), trial=trial.number)


async def _measure(
    run: Session,
    local: LocalRanks,
    trial: StartTrial,
    leader_address: str,
    halted: asyncio.Event,
    opened: Callable[[int], None],
    ports: Mapping[int, int],
) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + trial.seconds
    store = trial.store
    if store is None:
        port = await local.open_store(_tasks(run, local, trial, None, ports), trial.seconds, halted)
        if port is None:
            return
        opened(port)
        store = ("127.0.0.1", port)

    def end_soon(_reason: str) -> None:
        loop.call_later(_GRACE_SECONDS, halted.set)

    await local.measure(
        _tasks(run, local, trial, (store[0] or leader_address, store[1]), ports),
        seconds=max(0.0, until - loop.time()),
        aborted=halted,
        on_trouble=end_soon,
    )


def _tasks(
    run: Session, local: LocalRanks, trial: StartTrial, store: tuple[str, int] | None, ports: Mapping[int, int]
) -> list[Task]:
    # Only these: the leader cannot have a process load a library or write a file.
    variables = {name: value for name, value in trial.variables.items() if name in VARIABLES}
    template = Task(plan=trial.plan, rank=0, world_size=0, local_rank=0, store=None, variables=variables)
    ordinals = run.cuda_ordinals(trial.plan.backend)
    tasks = tasks_for(local.placements, template, store=store, gpus=ordinals, parts=trial.parts)
    return ras.addressed(tasks, {trial.parts[rank][0]: port for rank, port in ports.items()})
