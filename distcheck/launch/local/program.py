"""The fork server as a process: start it, early if it will probably be needed, and get its exit code.

The command line imports this before it parses anything, so nothing large is imported here.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from distcheck.probe.ending import kill_group
from distcheck.probe.working_directory import python

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_GONE_SECONDS = 1.0
_ELSEWHERE = ("--hosts", "--hostfile", "--launcher", "--help", "-h")
"""Options with which this process probably starts no ranks."""


class Program(NamedTuple):
    """A fork server that waits for its `Spec`."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    """Our end of its channel."""
    output: int
    """The descriptor from which to read its standard output and error."""


def start() -> Program:
    """Start the fork server in its own session; it imports torch before it reads its Spec.

    Raises:
        OSError: too many files or processes, or no memory.
    """
    control, theirs = socket.socketpair()
    with theirs:
        output, written = os.pipe()
        try:
            process = subprocess.Popen(
                python("distcheck.launch.local.forkserver", str(os.getpid()), str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            control.close()
            os.close(output)
            raise
        finally:
            os.close(written)
    return Program(process, control, output)


_early: list[Program] = []
"""The fork server that was started early, until it is taken or dropped."""


def start_early(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Start the fork server if a command that measures, with these arguments, will probably start ranks here.

    The import of torch takes longer than all else before the first figure, so it begins before anything is parsed.
    """
    own = takewhile(lambda word: word != "--", words)
    allocated = "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" not in environ
    if allocated or "DISTCHECK_HOSTS" in environ or any(word.startswith(_ELSEWHERE) for word in own):
        return
    begin()


def begin() -> None:
    """Start the fork server, to be taken when it is known what to fork."""
    with suppress(OSError):  # the run will try again, and report it
        _early.append(start())


def taken() -> Program | None:
    """Return the fork server that was started early, once."""
    return _early.pop() if _early else None


def drop() -> None:
    """End the fork server that was started early, if nothing has taken it."""
    while early := taken():
        kill_group(early.process.pid)
        early.control.close()
        os.close(early.output)
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel; it ends when it can
            early.process.wait(_GONE_SECONDS)


async def exit_code(process: subprocess.Popen[bytes] | None) -> int | None:
    """Return the exit code without reaping the process, so that its pid still names its group."""
    import asyncio

    for _ in range(50):
        if process is None:
            break
        ended = os.waitid(os.P_PID, process.pid, _ENDED)  # noqa: ASYNC222 WNOHANG: it does not wait
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        await asyncio.sleep(0.01)
    return None
