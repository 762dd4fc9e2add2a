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
_ANSWER_BYTES = 8 << 10
_SHOWN_BYTES, _SHOWN_LINES = 2000, 12
_STACK_SECONDS, _LOOK_SECONDS = 0.5, 0.01
_CALL = re.compile(rb'^  File "([^"\n]+)", line (\d+) in (\S+)\n', re.MULTILINE)
_CRASH, _MODULES = "Fatal Python error", "Extension modules:"
"""How faulthandler begins what it writes at a fatal signal, and a long line of it that nobody needs."""
_LINES_BEFORE = 4
"""Shown of what was written before a crash: an abort is explained there."""
_BEGINS = b"most recent call first"
_MOST_CALLS = 8


class Tail:
    """Reads a pipe into a short memory: ranks that print for ever fill neither a disk nor our memory."""

    def __init__(self) -> None:
        self._ours: int | None = None
        self._kept = bytearray()
        self._answer: bytes | None = None
        """What was heard of an answer; None where none is awaited."""

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
        if self._answer is not None:
            self._look_for_answer(words)
        self._kept += words
        del self._kept[:-_KEPT_BYTES]

    def _look_for_answer(self, words: bytes) -> None:
        """Take what follows the first words of an answer, which may stand in a flood of others."""
        if self._answer == b"":
            words = bytes(self._kept[-len(_BEGINS) :]) + words
            began = words.find(_BEGINS)
            words = words[began:] if began >= 0 else b""
        self._answer = ((self._answer or b"") + words)[:_ANSWER_BYTES]

    def last(self) -> str:
        """Return the last lines, or those about the last crash of a process if there was one."""
        self._read()
        text = self._kept.decode("utf-8", "replace")
        crash = text.rfind(_CRASH)
        if crash < 0:
            return "\n".join(text[-_SHOWN_BYTES:].strip().splitlines()[-_SHOWN_LINES:])
        before = text[max(0, crash - _SHOWN_BYTES) : crash].splitlines()[-_LINES_BEFORE:]
        lines = [line for line in text[crash:].splitlines() if line.strip() and not line.startswith(_MODULES)]
        return "\n".join([*before, *lines[: _SHOWN_LINES - len(before)]])[:_SHOWN_BYTES]

    async def asked(self, ask: Callable[[], None]) -> tuple[str, ...]:
        """Have a process write its Python calls by `ask` and return them, innermost first."""
        self._answer = b""
        calls: list[tuple[bytes, bytes, bytes]] = []
        try:
            ask()
            until = time.monotonic() + _STACK_SECONDS
            while time.monotonic() < until:
                await asyncio.sleep(_LOOK_SECONDS)
                before, calls = calls, _CALL.findall(self._answer)[:_MOST_CALLS]
                if calls and calls == before:
                    break
        except OSError:  # it has gone
            return ()
        finally:
            self._answer = None
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
