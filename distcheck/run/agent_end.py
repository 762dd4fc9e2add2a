"""The end of a rank whose torchelastic agent has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress


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
