"""What the ranks write: heard to the end however much it is, of which the last lines are kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import PurePath

_KEPT_BYTES = 64 << 10
_SHOWN_BYTES, _SHOWN_LINES = 2000, 12
_STACK_SECONDS, _LOOK_SECONDS = 0.2, 0.01
_CALL = re.compile(rb'^  File "([^"\n]+)", line (\d+) in (\S+)\n', re.MULTILINE)
_MOST_CALLS = 8


class Words:
    """Reads a pipe into a short memory: ranks that print for ever fill neither a disk nor our memory."""

    def __init__(self) -> None:
        self._ours: int | None = None
        self._kept = bytearray()
        self._heard = 0
        """Bytes in all."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Begin to listen; the descriptor to write to is given to a program in the body and then closed here."""
        self._ours, theirs = os.pipe()
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        try:
            yield theirs
        finally:
            os.close(theirs)

    def _read(self) -> None:
        if self._ours is None:
            return
        try:
            words = os.read(self._ours, _KEPT_BYTES)
        except BlockingIOError:
            return
        if not words:
            self.close()
            return
        self._heard += len(words)
        self._kept += words
        del self._kept[:-_KEPT_BYTES]

    def last(self) -> str:
        """Return the last lines."""
        self._read()
        lines = self._kept[-_SHOWN_BYTES:].decode("utf-8", "replace").strip().splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])

    async def asked(self, ask: Callable[[], None]) -> tuple[str, ...]:
        """Have a process write its Python calls by `ask` and return them, innermost first."""
        before = self._heard
        with contextlib.suppress(OSError):
            ask()
            until = time.monotonic() + _STACK_SECONDS
            heard = before
            while time.monotonic() < until and (heard == before or heard != self._heard):
                heard = self._heard
                await asyncio.sleep(_LOOK_SECONDS)
        new = bytes(self._kept[-(self._heard - before) :]) if self._heard > before else b""
        calls = _CALL.findall(new)[:_MOST_CALLS]
        return tuple(
            f"{name.decode('utf-8', 'replace')} ({_short(file.decode('utf-8', 'replace'))}:{int(line)})"
            for file, line, name in calls
        )

    def close(self) -> None:
        """Listen no longer."""
        if self._ours is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().remove_reader(self._ours)
            os.close(self._ours)
            self._ours = None


def _short(file: str) -> str:
    """Return a file's name with that of its folder: distributed/distributed_c10d.py."""
    return "/".join(PurePath(file).parts[-2:])
