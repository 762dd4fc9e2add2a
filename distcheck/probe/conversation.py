"""A child process that answers several questions, one after the other, and may hang in any of them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from distcheck.facts.base import Missing
from distcheck.probe.child import Question, failure, last_answer, not_started, start
from distcheck.probe.ending import end_group
from distcheck.probe.memory_file import memory_file

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from distcheck.probe.fork import Fork

_PAUSE_SECONDS = 0.01


class Conversation:
    """A child of `child.ask` that stays until its standard input ends, as when this process dies."""

    def __init__(self, question: Question, lifetime: float, environ: Mapping[str, str]) -> None:
        """Start the child; its lifetime, in seconds, is its first argument."""
        self._question, self._read, self._error = question, 0, ""
        self._output: int | None = None
        self._child: subprocess.Popen[bytes] | Fork | None = None
        try:
            self._output = memory_file("distcheck-answers")
            self._child = start(question, lifetime, None, self._output, environ)
        except OSError as error:
            self._error = not_started(question, error)

    async def hear(self, kind: Any, seconds: float) -> Any:
        """Return the next answer of type `kind`, or `Missing` if none comes in time."""
        import asyncio

        until = time.monotonic() + seconds
        while self._child is not None and self._output is not None:
            ended = self._child.poll() is not None
            written = os.pread(self._output, 1 << 24, self._read)
            answer = last_answer(kind | Missing, written)
            if answer is not None and written.endswith(b"\n"):
                self._read += len(written)
                return answer
            if ended or time.monotonic() >= until:
                reason = failure(self._question, seconds, self._child.returncode if ended else None, written)
                return Missing(reason=reason or f"the process that queries {self._question.subject} gave no answer")
            await asyncio.sleep(_PAUSE_SECONDS)
        return Missing(reason=self._error)

    def say(self, line: str) -> None:
        """Send a line to the child; one that has ended does not hear it."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.write(f"{line}\n".encode())
                self._child.stdin.flush()

    async def close(self, seconds: float) -> None:
        """Let the child end within `seconds`, then kill it."""
        import asyncio

        child, self._child = self._child, None
        output, self._output = self._output, None
        try:
            if child is None:
                return
            if child.stdin is not None:
                with suppress(OSError):
                    child.stdin.close()
            until = time.monotonic() + seconds
            while child.poll() is None and time.monotonic() < until:  # noqa: ASYNC110 there is no event
                await asyncio.sleep(_PAUSE_SECONDS)
            if child.poll() is None:
                await end_group(child)
        finally:
            if output is not None:
                os.close(output)
