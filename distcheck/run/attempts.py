"""What a node remembers of torchrun's earlier attempts, and the end of a rank whose agent has ended.

The process of each agent's local rank 0 reads what it remembers before the roll call, through a child that stays, and
writes this attempt when the leader sends it with the last call. A few nodes remember it for all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.json import encode

from distcheck.facts.base import Missing
from distcheck.facts.rank import RunAttempt

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.run.context import Session

_READ_SECONDS = 3.0
_KEEPERS = 8
"""Nodes that remember an attempt: the next one knows it unless all of them have left."""


def restarts(environ: Mapping[str, str]) -> bool:
    """Whether this process remembers the attempts of a torchrun that can restart it."""
    if not environ.get("TORCHELASTIC_ERROR_FILE"):
        return False
    from distcheck.probe.attempts import folder

    return bool(folder(environ))


async def recall(run: Session) -> RunAttempt | Missing | None:
    """Return the last attempt that this process's agent remembers; None if another process does, or nothing can."""
    environ = run.request.environ
    if "meeting" not in run.asked.looks or not restarts(environ):
        return None
    from distcheck.probe.attempts import folder, question
    from distcheck.probe.child import Conversation

    run.memory = Conversation(question(folder(environ), environ), run.remaining(), environ)
    found: RunAttempt | Missing = await run.memory.hear(RunAttempt, min(_READ_SECONDS, run.remaining(5.0)))
    return found


def remember(run: Session, attempt: RunAttempt | None) -> None:
    """Have this process's agent remember an attempt."""
    if run.memory is not None and attempt is not None:
        run.memory.say(encode(attempt).decode())


def keepers(job: Job, followers: Iterable[str]) -> list[str]:
    """Return the followers that remember an attempt for all."""
    keep = {p.uid for p in job.processes if isinstance(p.earlier_attempt, RunAttempt)}
    return list(islice((uid for uid in followers if uid in keep), _KEEPERS))


@contextmanager
def ending_with_agent(environ: Mapping[str, str], end: Callable[[], None]) -> Iterator[None]:
    """Call `end` if this process's torchelastic agent ends in the body.

    torchrun's ranks outlive an agent that was killed. Such a rank would join the roll call of the next attempt.
    """
    descriptor = -1
    if environ.get("TORCHELASTIC_RUN_ID"):
        from distcheck.probe import process

        agent = process.agent(environ)
        with suppress(OSError, AttributeError):  # before Linux 5.3, here or where Python was built
            descriptor = os.pidfd_open(agent.pid) if agent else -1
    loop = asyncio.get_running_loop()
    if descriptor >= 0:

        def ended() -> None:
            loop.remove_reader(descriptor)
            end()

        loop.add_reader(descriptor, ended)
    try:
        yield
    finally:
        if descriptor >= 0:
            loop.remove_reader(descriptor)
            os.close(descriptor)
