"""Drains the ranks' output and keeps its tail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import PurePath

_KEPT_BYTES = 64 << 10
_ANSWER_BYTES = 8 << 10
_SHOWN_BYTES, _SHOWN_LINES = 2000, 12
_STACK_SECONDS, _LOOK_SECONDS = 0.5, 0.01
_CALL = re.compile(rb'^  File "([^"\n]+)", line (\d+) in (\S+)\n', re.MULTILINE)
_CRASH, _MODULES = "Fatal Python error", "Extension modules:"
"""The beginning of faulthandler's output at a fatal signal, and a long line of it that is not shown."""
_LINES_BEFORE = 4
"""Lines shown from before a crash, where the reason of an abort is."""
_BEGINS = b"most recent call first"
_MOST_CALLS = 8


class Tail:
    """Reads a pipe and keeps its end, so that endless output fills neither disk nor memory."""

    def __init__(self) -> None:
        self._ours: int | None = None
        self._kept = bytearray()
        self._answer: bytes | None = None
        """The answer read so far; None while none is expected."""

    def listen(self, ours: int) -> None:
        """Read from a pipe, which this closes in the end."""
        self._ours = ours
        os.set_blocking(ours, False)
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        if self._ours is None:
            return
        try:
            output = os.read(self._ours, _KEPT_BYTES)
        except BlockingIOError:
            return
        if not output:
            self.close()
            return
        if self._answer is not None:
            self._look_for_answer(output)
        self._kept += output
        del self._kept[:-_KEPT_BYTES]

    def _look_for_answer(self, output: bytes) -> None:
        """Append the output from the beginning of an answer on; other output may precede it."""
        if self._answer == b"":
            output = bytes(self._kept[-len(_BEGINS) :]) + output
            began = output.find(_BEGINS)
            output = output[began:] if began >= 0 else b""
        self._answer = ((self._answer or b"") + output)[:_ANSWER_BYTES]

    def text(self) -> str:
        """Return all that is kept."""
        self._read()
        return self._kept.decode("utf-8", "replace")

    def last(self) -> str:
        """Return the last lines, or those about the last crash of a process, if any."""
        text = self.text()
        crash = text.rfind(_CRASH)
        if crash < 0:
            return "\n".join(text[-_SHOWN_BYTES:].strip().splitlines()[-_SHOWN_LINES:])
        before = text[max(0, crash - _SHOWN_BYTES) : crash].splitlines()[-_LINES_BEFORE:]
        lines = [line for line in text[crash:].splitlines() if line.strip() and not line.startswith(_MODULES)]
        return "\n".join([*before, *lines[: _SHOWN_LINES - len(before)]])[:_SHOWN_BYTES]

    async def asked(self, ask: Callable[[], None]) -> tuple[str, ...]:
        """Return the Python stack that `ask` makes a process write, innermost call first."""
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
        except OSError:  # the process is gone
            return ()
        finally:
            self._answer = None
        return tuple(
            f"{name.decode('utf-8', 'replace')} ({_short(file.decode('utf-8', 'replace'))}:{int(line)})"
            for file, line, name in calls
        )

    def close(self) -> None:
        """Stop reading."""
        if self._ours is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().remove_reader(self._ours)
            os.close(self._ours)
            self._ours = None


def _short(file: str) -> str:
    """Return a file's name with its folder's: distributed/distributed_c10d.py."""
    return "/".join(PurePath(file).parts[-2:])
