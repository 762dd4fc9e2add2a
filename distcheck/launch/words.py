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
_ASKED_BYTES = 16 << 20
"""What is kept while an answer is awaited, which may stand among a flood of words."""
_SHOWN_BYTES, _SHOWN_LINES = 2000, 12
_STACK_SECONDS, _LOOK_SECONDS = 0.2, 0.01
_CALL = re.compile(rb'^  File "([^"\n]+)", line (\d+) in (\S+)\n', re.MULTILINE)
_BEGINS = b"most recent call first"
_MOST_CALLS = 8


class Words:
    """Reads a pipe into a short memory: ranks that print for ever fill neither a disk nor our memory."""

    def __init__(self) -> None:
        self._ours: int | None = None
        self._kept = bytearray()
        self._heard = 0
        """Bytes in all."""
        self._most_bytes = _KEPT_BYTES

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
        del self._kept[: -self._most_bytes]

    def last(self) -> str:
        """Return the last lines."""
        self._read()
        lines = self._kept[-_SHOWN_BYTES:].decode("utf-8", "replace").strip().splitlines()
        return "\n".join(lines[-_SHOWN_LINES:])

    async def asked(self, ask: Callable[[], None]) -> tuple[str, ...]:
        """Have a process write its Python calls by `ask` and return them, innermost first."""
        start, self._most_bytes = self._heard, _ASKED_BYTES
        calls: list[tuple[bytes, bytes, bytes]] = []
        try:
            ask()
            until = time.monotonic() + _STACK_SECONDS
            while time.monotonic() < until:
                await asyncio.sleep(_LOOK_SECONDS)
                before, calls = calls, self._calls_since(start)
                if calls and calls == before:
                    break
        except OSError:  # it has gone
            return ()
        finally:
            self._most_bytes = _KEPT_BYTES
            del self._kept[:-_KEPT_BYTES]
        return tuple(
            f"{name.decode('utf-8', 'replace')} ({_short(file.decode('utf-8', 'replace'))}:{int(line)})"
            for file, line, name in calls
        )

    def _calls_since(self, start: int) -> list[tuple[bytes, bytes, bytes]]:
        """Return file, line and name of the calls that were written since so many bytes had been heard."""
        began = self._kept.find(_BEGINS, max(0, len(self._kept) - (self._heard - start)))
        return _CALL.findall(self._kept, began)[:_MOST_CALLS] if began >= 0 else []

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
