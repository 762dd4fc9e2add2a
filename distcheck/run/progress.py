"""The progress bar of a measurement, on stderr if it is a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Watcher:
    """A progress line that disappears on close; written only if stderr is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, steps: int) -> None:
        """Show a bar of `steps` steps."""
        if not self._shown or self._progress is not None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("distcheck: {task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("importing torch", total=steps)
        self._progress.start()

    def step(self, text: str, done: int) -> None:
        """Show the current step, after `done` steps."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text, completed=done)

    def close(self) -> None:
        """Remove the line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
