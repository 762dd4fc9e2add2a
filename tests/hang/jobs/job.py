"""What a fault knows of its job, and what it says about itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., object])

MODULES = ("collectives", "files", "threads", "endings", "starts", "healthy", "unseen")


def case(
    *answers: str, odd: tuple[int, ...] = (), missing: tuple[int, ...] = (), at: str = "", needs: str = ""
) -> Callable[[F], F]:
    """Say which answers are right, and which ranks are odd or missing; tests read this without importing torch.

    at: a line that cannot be marked.
    needs: a comma-separated list of what the case does not work without: "root", "exec" (ranks that were not forked
    from a process that has torch), "no agent" (nobody who ends the other ranks when one has ended), "MOUNT", "LIBCUDA",
    "DUMPS".
    """
    return lambda fault: fault


class Job(NamedTuple):
    """One rank of it."""

    rank: int
    size: int
    folder: Path

    def ready(self, pid: int = 0) -> None:
        """Note that the next line is the one where this rank stays, or that it works; pid: the rank's, of a helper."""
        new = self.folder / f"new.{self.rank}"
        new.write_text(str(pid or os.getpid()))
        new.rename(self.folder / f"ready.{self.rank}")

    def stepped(self) -> None:
        """Note that a step has ended, in seconds of the monotonic clock."""
        with (self.folder / f"steps.{self.rank}").open("a") as steps:
            steps.write(f"{time.monotonic():.6f}\n")

    def fifo(self, name: str) -> Path:
        """Return a named pipe of this rank."""
        path = self.folder / f"{name}.{self.rank}"
        os.mkfifo(path)
        return path
