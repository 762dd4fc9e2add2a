"""The assignment of a probe on another node: its ranks, what to check, and for how long."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from distcheck.facts.asked import Asked
from distcheck.facts.placement import Placement
from distcheck.selection.placement import RANK_VARIABLES, place

_FOREIGN = ("TORCHELASTIC_", "PET_")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes of a launch do: the same for all, except that ssh sets `task`."""

    asked: Asked
    task: int | None = None
    """The probe's number among the probes; None if the launcher sets it."""
    ranks_by_task: tuple[int, ...] = ()
    """How many ranks each probe starts; empty if the launcher starts one task per rank."""
    master_addr: str
    master_port: int
    connect_seconds: float = 3.0
    iterations: int | None = None
    time_limit_seconds: float | None = None
    environment: dict[str, str] = {}
    """Variables that the ranks get in addition to the node's."""
    ends_with_stdin: bool = False
    """Whether the end of standard input means: stop."""


_decoder = msgspec.msgpack.Decoder(Assignment)


def encode(assignment: Assignment) -> str:
    """Return an assignment as one command line argument."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(assignment)).decode()


def decode(word: str) -> Assignment:
    """Return the assignment in a command line argument.

    Raises:
        ValueError: it is not an assignment, or is another version's.
    """
    try:
        return _decoder.decode(base64.urlsafe_b64decode(word.strip()))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"cannot read the assignment: {error}") from error


def environment(assignment: Assignment, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a probe's environment: the node's plus its own, without inherited rank variables."""
    kept = {k: v for k, v in environ.items() if k not in RANK_VARIABLES and not k.startswith(_FOREIGN)}
    return kept | assignment.environment


def placements(assignment: Assignment, environ: Mapping[str, str]) -> tuple[Placement, ...]:
    """Return the placements of a probe's ranks, given its environment from `environment`.

    Raises:
        ValueError: the launcher does not set the task number, or started too many tasks.
    """
    here = place(environ)
    if not assignment.ranks_by_task:
        if here.rank is None:
            raise ValueError("cannot determine the task number: no variable of a known launcher is set")
        return (
            msgspec.structs.replace(
                here, master_addr=assignment.master_addr, master_port=assignment.master_port, master_derived=False
            ),
        )
    task = here.rank if assignment.task is None else assignment.task
    if task is None or not 0 <= task < len(assignment.ranks_by_task):
        raise ValueError(f"this is task {task}, expected 0 to {len(assignment.ranks_by_task) - 1}")
    number, first = assignment.ranks_by_task[task], sum(assignment.ranks_by_task[:task])
    return tuple(
        Placement(
            rank=first + i,
            world_size=sum(assignment.ranks_by_task),
            local_rank=i,
            local_world_size=number,
            node_rank=task,
            launcher="distcheck" if here.launcher in {"none", "by hand"} else here.launcher,
            master_addr=assignment.master_addr,
            master_port=assignment.master_port,
        )
        for i in range(number)
    )
