"""What a run is doing, on stderr: one live line on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

REFRESH_SECONDS = 0.5
_BAR = 16
"""Columns of the bar."""
_CLEAR = "\r\x1b[2K"


class StageView(NamedTuple):
    """What a stage does at one moment."""

    stage: str
    doing: str = ""
    done: int = 0
    of: int = 0
    """How many `unit` there are to do; 0: no bar."""
    unit: str = ""
    awaited: str = ""
    """Ranks or nodes that the stage waits for."""
    why: str = ""
    """What they are doing, or did not do yet."""
    until: float | None = None
    """time.monotonic() at which the stage goes on without them."""


class Progress:
    """Shows the stages of a run; nothing if quiet."""

    def __init__(self, deadline: Callable[[], float], *, quiet: bool, terminal: bool = True) -> None:
        """Without `terminal`, print as to a file, because other processes of the job write to this terminal too."""
        self._deadline, self._quiet = deadline, quiet or sys.stderr is None
        self.live = terminal and not self._quiet and _is_our_terminal()
        """Whether there is a live line."""
        self._view: Callable[[], StageView] | None = None
        self._drawn, self._drawn_at = "", 0.0

    def begin(self, line: str, view: Callable[[], StageView]) -> None:
        """Begin a stage: print its line, or show what `view` returns until the next stage begins.

        Without a line, the stage is shown on a terminal only.
        """
        self._view = view
        if self.live:
            self.draw(now=True)
        elif line:
            self.say(line)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            _write(f"{_CLEAR if self.live and self._view else ''}distcheck: {_printable(text)}\n")
            self.draw(now=True)

    def draw(self, *, now: bool = False) -> None:
        """Draw the live line, if it is `now` or the last time is long enough ago."""
        moment = time.monotonic()
        if self.live and self._view and (now or moment >= self._drawn_at + REFRESH_SECONDS):
            self._drawn_at = moment
            text = line(self._view(), moment, self._deadline(), shutil.get_terminal_size().columns - 1)
            if now or text != self._drawn:
                self._drawn = text
                _write(_CLEAR + text)

    async def keep_drawing(self) -> None:
        """Draw the live line again and again."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self.draw()

    def close(self) -> None:
        """Remove the live line."""
        if self.live and self._view:
            _write(_CLEAR)
        self._view = None


def warn(text: str) -> None:
    """Print a warning, with --quiet too."""
    tell(f"warning: {text}")


def tell(text: str) -> None:
    """Print a line, with --quiet too; if stderr is closed or full, the run goes on without."""
    if sys.stderr is not None:
        _write(f"distcheck: {_printable(text)}\n")


def line(view: StageView, now: float, deadline: float, columns: int) -> str:
    """Return a view as one line; if it is too long, without the bar, the reason, the deadline, and then cut."""
    count = f" {view.done}/{view.of} {view.unit}" if view.of else ""
    bar = f" [{'#' * (_BAR * min(view.done, view.of) // view.of):.<{_BAR}}]" if view.of else ""
    doing = f", {view.doing}" if view.doing else ""
    limit = f" {clock(view.until - now)} more" if view.until is not None else ""
    awaited = f"; waiting{limit} for {view.awaited}" if view.awaited else ""
    why = f": {view.why}" if view.awaited and view.why else ""
    tail = f"; deadline in {clock(deadline - now)}"
    head = f"distcheck: {view.stage}"
    middles = (bar + count + doing + awaited + why, count + doing + awaited + why, count + doing + awaited)
    lines = [_printable(head + middle) + tail for middle in middles]
    lines.append(lines[-1].removesuffix(tail))
    room = columns - len(tail)
    shortest = lines[-1] if len(lines[-1]) <= room else lines[-1][: max(0, room - 3)] + "..."
    return next((text for text in lines if len(text) <= columns), shortest + tail)[:columns]


def clock(seconds: float) -> str:
    """Return seconds as 0:00:07; a moment that is over is 0:00:00."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _printable(text: str) -> str:
    """Return text for a terminal; a node's name is whatever its machine says."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _is_our_terminal() -> bool:
    """Whether stderr is a terminal that can redraw a line, and this process runs in its foreground."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # not the terminal of this session, as under `script` or in a test
        return True


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the run goes on
        sys.stderr.write(text)
        sys.stderr.flush()
