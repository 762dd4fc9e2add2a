"""Run a question that may block (driver, resolver, file system) in a child process.

A process that blocks in the kernel cannot be ended by any signal, and a thread that blocks there keeps its whole
process from ending. So another program asks the question. It is killed at the deadline, and left behind if even that
does not end it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
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


class Question(NamedTuple):
    """A module to run, and the texts for a missing answer."""

    module: str
    """A module that prints the answer as one line of JSON; its first argument is its lifetime in seconds."""
    subject: str
    """What the module asks: NVML, this node."""
    silent: str
    """A possible cause when no answer comes in time."""
    arguments: tuple[str, ...] = ()
    """Arguments of the module after its lifetime."""


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

    The child is polled and not awaited: a child stuck in the kernel is never reaped, and asyncio's watcher would wait
    for it. It writes to memory and not to a pipe, so that nothing has to be read while it runs, and it holds none of
    our descriptors open.
    """
    import asyncio

    with ExitStack() as held:

        def file(name: str) -> int:
            descriptor = memory_file(name)
            held.callback(os.close, descriptor)
            return descriptor

        try:
            output, source = file("distcheck-answer"), file("distcheck-question")
            os.pwrite(source, given, 0)
            child = start(question, timeout, source if until is None else None, output, environ)
        except OSError as error:
            return Missing(reason=not_started(question, error))
        deadline = time.monotonic() + timeout
        try:
            while child.poll() is None and time.monotonic() < deadline:
                if until is not None and until.is_set() and child.stdin is not None:
                    child.stdin.close()
                    child.stdin, timeout = None, patience
                    deadline = min(deadline, time.monotonic() + patience)
                await asyncio.sleep(0.01)
            in_time = child.returncode is not None
        finally:
            if child.stdin is not None:
                child.stdin.close()
            if child.poll() is None:
                await end_group(child)
        written = os.pread(output, 1 << 24, 0)
        reason = failure(question, timeout, child.returncode if in_time else None, written)
        answer: T | Missing | None = last_answer(kind | Missing, written)
        if not reason and answer is not None:
            return answer
        reason = reason or f"the process that queries {question.subject} gave no answer: {_last_line(written)}"
        if in_part is None or answer is None or isinstance(answer, Missing):
            return Missing(reason=reason)
        return in_part(answer, reason)


def not_started(question: Question, error: OSError) -> str:
    """Return why there is no child: there are too many processes or files, or there is no memory."""
    return f"could not start the process that queries {question.subject}: {limit_behind(error) or error}"


def start(
    question: Question, lifetime: float, source: int | None, output: int, environ: Mapping[str, str] | None
) -> subprocess.Popen[bytes] | Fork:
    """Start the child of a question; without `source` its standard input is a pipe.

    Raises:
        OSError: too many processes or files, or no memory.
    """
    words = (str(int(lifetime) + OUTLIVE_SECONDS), *question.arguments)
    if may_fork():
        return Fork(question.module, words, source, output, environ)
    return subprocess.Popen(
        python(question.module, *words),
        stdin=subprocess.PIPE if source is None else source,
        stdout=output,
        stderr=output,
        env=environ,
        start_new_session=True,
    )


def failure(question: Question, timeout: float, returncode: int | None, written: bytes) -> str:
    """Return why the child did not finish; '' if it did."""
    if returncode is None:
        return f"{question.subject} did not answer within {timeout:.3g} s: {question.silent}"
    if returncode < 0:
        return f"{question.subject} crashed the process that queried it: {signal_name(-returncode)}"
    if returncode:
        return (
            f"the process that queries {question.subject} gave no answer"
            f" (exit code {returncode}): {_last_line(written)}"
        )
    return ""


def _last_line(written: bytes) -> str:
    lines = [line for line in written.splitlines() if line.strip()]
    return lines[-1].decode("utf-8", "replace")[:200] if lines else "no output"


def last_answer(kind: Any, written: bytes) -> Any:
    """Return the child's last answer: the last line of JSON of that type, None without one."""
    for line in reversed(written.splitlines()):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=kind)
    return None


def exit_after_lifetime() -> None:
    """In the child: exit by SIGALRM after the lifetime, when no parent can be waiting."""
    if len(sys.argv) > 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(sys.argv[1]))


def say(answer: Any) -> None:
    """In the child: print an answer as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(legible(answer)).decode() + "\n")
    sys.stdout.flush()
