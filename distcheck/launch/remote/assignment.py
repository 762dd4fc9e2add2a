"""What distcheck tells a probe that it starts on another node: who it is, what to look at, and how long."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from distcheck.facts import Asked, Placement
from distcheck.selection.placement import RANK_VARIABLES, place

_FOREIGN = ("TORCHELASTIC_", "PET_")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One for all probes of a launch, except that ssh gives each node its `task`."""

    asked: Asked
    task: int | None = None
    """The probe's number among the probes; None where the launcher says it."""
    ranks_by_task: tuple[int, ...] = ()
    """How many ranks each probe starts; empty where the launcher started one task per rank."""
    master_addr: str
    master_port: int
    connect_seconds: float = 3.0
    iterations: int | None = None
    time_limit_seconds: float | None = None
    environment: dict[str, str] = {}
    """Variables that the ranks get besides those that are there."""
    ends_with_stdin: bool = False
    """Whether the end of standard input means that nobody waits for the facts any more."""


_decoder = msgspec.msgpack.Decoder(Assignment)


def encode(assignment: Assignment) -> str:
    """Return an assignment as one word of a command line."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(assignment)).decode()


def decode(word: str) -> Assignment:
    """Read an assignment.

    Raises:
        ValueError: another version wrote it, or it is none.
    """
    try:
        return _decoder.decode(base64.urlsafe_b64decode(word.strip()))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"cannot read the assignment: {error}") from error


def environment(assignment: Assignment, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a probe: what is there and what it was given, without what others said of ranks."""
    kept = {k: v for k, v in environ.items() if k not in RANK_VARIABLES and not k.startswith(_FOREIGN)}
    return kept | assignment.environment


def placements(assignment: Assignment, environ: Mapping[str, str]) -> tuple[Placement, ...]:
    """Return the ranks for which a probe speaks, given its environment from `environment`.

    Raises:
        ValueError: the launcher does not say which task this is, or started more tasks than were wanted.
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
