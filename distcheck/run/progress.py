"""The progress line of a measurement, on stderr if it is a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time

_BAR = 24
"""Columns of the bar."""
_CLEAR = "\r\x1b[2K"


class Watcher:
    """A progress line that disappears on close; written only if stderr is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._steps = 0
        self._start = 0.0

    def begin(self, steps: int) -> None:
        """Show a bar of `steps` steps."""
        if self._shown and not self._steps:
            self._steps, self._start = steps, time.monotonic()
            self.step("importing torch", 0)

    def step(self, text: str, done: int) -> None:
        """Show the current step, after `done` steps."""
        if not self._steps:
            return
        bar = "#" * (_BAR * done // self._steps)
        left = "-:--:--"
        if done:
            seconds = round((time.monotonic() - self._start) / done * (self._steps - done))
            left = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        line = f"distcheck: {text} [{bar:.<{_BAR}}] {done}/{self._steps} {left}"
        _write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])

    def close(self) -> None:
        """Remove the line."""
        if self._steps:
            self._steps = 0
            _write(_CLEAR)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the run goes on
        sys.stderr.write(text)
        sys.stderr.flush()
