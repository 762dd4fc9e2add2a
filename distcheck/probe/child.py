"""Run a question that may block (driver, resolver, file system) in a child process.

A process that blocks in the kernel cannot be ended by any signal, and a thread that blocks there keeps its whole
process from ending. So another program asks the question. It is killed at the deadline, and left behind if even that
does not end it.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from distcheck.facts.base import Missing, legible
from distcheck.facts.errors import limit_behind
from distcheck.facts.quantities import signal_name
from distcheck.probe.ending import end_group
from distcheck.probe.fork import Fork, may_fork
from distcheck.probe.memory_file import memory_file
from distcheck.probe.working_directory import python

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

T = TypeVar("T")
OUTLIVE_SECONDS = 5
_PAUSE_SECONDS = 0.01


class Question(NamedTuple):
    """A function to call in another process, and the texts for a missing answer."""

    module: str
    """A module whose function `call` returns the answer, or yields several, each more complete."""
    subject: str
    """What it asks: NVML, this node."""
    silent: str
    """A possible cause when no answer comes in time."""
    arguments: tuple[str, ...] = ()
    call: str = "collect"


async def ask(
    question: Question,
    kind: type[T],
    timeout: float,
    *,
    in_part: Callable[[T, str], T] | None = None,
    environ: Mapping[str, str] | None = None,
    until: asyncio.Event | None = None,
    patience: float = 0.0,
    given: bytes = b"",
) -> T | Missing:
    """Return the child's answer of type `kind`, or `Missing`, within `timeout` seconds.

    One more second may pass until the child is dead.

    With `until` the child gets a standard input that is closed when the event is set; it then answers within `patience`
    seconds. With `given` it reads these bytes from its standard input.

    A child may answer several times, each time more fully. If it does not finish, `in_part` builds the answer from the
    last one and the reason why there is no more. Without `environ` the child inherits our environment.
    """
    import asyncio

    talk = Conversation(question, timeout, environ, given if until is None else None)
    deadline = time.monotonic() + timeout
    try:
        while talk.lives and time.monotonic() < deadline:
            if until is not None and until.is_set():
                talk.hang_up()
                until, timeout, deadline = None, patience, min(deadline, time.monotonic() + patience)
            await asyncio.sleep(_PAUSE_SECONDS)
        return talk.last_answer(kind, timeout, in_part)  # type: ignore[no-any-return]
    finally:
        await talk.close(0.0)


class Conversation:
    """A child that answers several questions, one after the other, and stays until its standard input ends.

    The child is polled and not awaited: a child stuck in the kernel is never reaped, and asyncio's watcher would wait
    for it. It writes to memory and not to a pipe, so that nothing has to be read while it runs, and it holds none of
    our descriptors open.
    """

    def __init__(
        self, question: Question, lifetime: float, environ: Mapping[str, str] | None, given: bytes | None = None
    ) -> None:
        """Start the child, which ends after `lifetime` seconds; `given` is all of its standard input."""
        self._question, self._read, self._error = question, 0, ""
        self._output: int | None = None
        self._child: subprocess.Popen[bytes] | Fork | None = None
        source: int | None = None
        try:
            self._output = memory_file("distcheck-answer")
            if given is not None:
                source = memory_file("distcheck-question")
                os.pwrite(source, given, 0)
            self._child = _start(question, lifetime, source, self._output, environ)
        except OSError as error:  # too many processes or files, or no memory
            reason = limit_behind(error) or error
            self._error = f"could not start the process that queries {question.subject}: {reason}"
        finally:
            if source is not None:
                os.close(source)

    @property
    def lives(self) -> bool:
        """Whether the child runs."""
        return self._child is not None and self._child.poll() is None

    async def hear(self, kind: Any, seconds: float) -> Any:
        """Return the next answer of type `kind`, or `Missing` if none comes in time."""
        import asyncio

        until = time.monotonic() + seconds
        while self._child is not None and self._output is not None:
            ended = not self.lives
            written = os.pread(self._output, 1 << 24, self._read)
            answer = last_answer(kind | Missing, written)
            if answer is not None and written.endswith(b"\n"):
                self._read += len(written)
                return answer
            if ended or time.monotonic() >= until:
                return Missing(reason=self._failure(seconds, written))
            await asyncio.sleep(_PAUSE_SECONDS)
        return Missing(reason=self._error)

    def last_answer(self, kind: Any, seconds: float, in_part: Callable[[Any, str], Any] | None) -> Any:
        """Return the last answer of a child that should have ended within `seconds`, see `ask`."""
        if self._child is None or self._output is None:
            return Missing(reason=self._error)
        written = os.pread(self._output, 1 << 24, 0)
        answer = last_answer(kind | Missing, written)
        if answer is not None and self._child.poll() == 0:
            return answer
        reason = self._failure(seconds, written)
        if in_part is None or answer is None or isinstance(answer, Missing):
            return Missing(reason=reason)
        return in_part(answer, reason)

    def say(self, line: str) -> None:
        """Send a line to the child; one that has ended does not hear it."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.write(f"{line}\n".encode())
                self._child.stdin.flush()

    def hang_up(self) -> None:
        """End the child's standard input."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
            self._child.stdin = None

    async def close(self, seconds: float) -> None:
        """Let the child end within `seconds`, then kill it."""
        import asyncio

        self.hang_up()
        child, self._child = self._child, None
        output, self._output = self._output, None
        try:
            until = time.monotonic() + seconds
            while child is not None and child.poll() is None and time.monotonic() < until:  # noqa: ASYNC110 no event
                await asyncio.sleep(_PAUSE_SECONDS)
            if child is not None and child.poll() is None:
                await end_group(child)
        finally:
            if output is not None:
                os.close(output)

    def _failure(self, seconds: float, written: bytes) -> str:
        """Return why the child gave no answer, or did not finish."""
        code, subject = None if self._child is None else self._child.poll(), self._question.subject
        if code is None:
            return f"{subject} did not answer within {seconds:.3g} s: {self._question.silent}"
        if code < 0:
            return f"{subject} crashed the process that queried it: {signal_name(-code)}"
        lines = [line for line in written.splitlines() if line.strip()]
        last = lines[-1].decode("utf-8", "replace")[:200] if lines else "no output"
        how = f" (exit code {code})" if code else ""
        return f"the process that queries {subject} gave no answer{how}: {last}"


def _start(
    question: Question, lifetime: float, source: int | None, output: int, environ: Mapping[str, str] | None
) -> subprocess.Popen[bytes] | Fork:
    """Start the child of a question; without `source` its standard input is a pipe.

    Raises:
        OSError: too many processes or files, or no memory.
    """
    words = (question.module, question.call, str(int(lifetime) + OUTLIVE_SECONDS), *question.arguments)
    if may_fork():
        return Fork(main, words, source, output, environ)
    return subprocess.Popen(
        python(__name__, *words),
        stdin=subprocess.PIPE if source is None else source,
        stdout=output,
        stderr=output,
        env=environ,
        start_new_session=True,
    )


def last_answer(kind: Any, written: bytes) -> Any:
    """Return the child's last answer: the last line of JSON of that type, None without one."""
    for line in reversed(written.splitlines()):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=kind)
    return None


def main() -> None:
    """Be the child: call a question's function and print each answer as one line of JSON.

    SIGALRM ends it after its lifetime, when no parent can be waiting.
    """
    module, call, lifetime, *words = sys.argv[1:]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(lifetime))
    answers = getattr(importlib.import_module(module), call)(*words)
    for answer in answers if isinstance(answers, Iterator) else (answers,):
        sys.stdout.write(msgspec.json.encode(legible(answer)).decode() + "\n")
        sys.stdout.flush()
    os._exit(0)  # whatever a thread still waits for


if __name__ == "__main__":
    main()
