"""A probe that distcheck started on another node: ``python -m distcheck.run.remote_probe ASSIGNMENT``.

It does what it does inside a launcher, and sends what it knows home on standard output: who it is at once, its own
facts as soon as it has them, and, from the process that concludes, the whole job. So the report is whole even where no
two nodes can reach each other, and as whole as can be where a node dies. It ends with exit code 0 however the job is
judged: the launcher must not end the others for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from distcheck import __version__
from distcheck.facts import Job
from distcheck.launch.remote import assignment as assignments
from distcheck.launch.remote import frames
from distcheck.launch.remote.assignment import Assignment
from distcheck.launch.remote.engine import CLOSE
from distcheck.launch.remote.frames import Arrived, Collected, Concluded, Message

STOP = signal.SIGUSR1
"""srun, Open MPI's mpirun and MPICH's mpiexec hand it on to every task; SIGTERM they answer with everybody's end."""
_BROKEN = 70


class _Home:
    """The way home: the standard output that this process was started with."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)  # what anything else prints must not come between the frames
        self._sender = os.urandom(4).hex()
        self._number = 0

    def tell(self, message: Message) -> None:
        """Send a message home."""
        frames.write(self._fd, frames.encode(self._sender, self._number, message))
        self._number += 1


def main() -> int:
    """Run the probe; return the exit code."""
    start = time.monotonic()
    home = _Home()
    signal.signal(STOP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    home.tell(Arrived(__version__, os.uname().nodename, os.getpid()))
    word = sys.argv[1] if len(sys.argv) > 1 else "-"
    from_stdin = word == "-"
    if from_stdin:
        word = sys.stdin.buffer.readline().decode("ascii", "replace")
    try:
        assignment = assignments.decode(word)
    except ValueError as error:
        sys.stderr.write(f"distcheck {__version__}: {error}\n")
        return _BROKEN
    if assignment.ends_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    return _probe(assignment, home, start)


def _probe(assignment: Assignment, home: _Home, start: float) -> int:
    environ = assignments.environment(assignment, os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        placements = assignments.placements(assignment, environ)
    except ValueError as error:
        sys.stderr.write(f"distcheck {__version__}: {error}\n")
        return _BROKEN
    from distcheck.run import entry
    from distcheck.run.request import Request

    request = Request(
        asked=assignment.asked,
        placements=placements,
        environ=environ,
        connect_seconds=assignment.connect_seconds,
        iterations=assignment.iterations,
        time_limit_seconds=assignment.time_limit_seconds,
        start=start,
        on_collected=lambda report: home.tell(Collected(report)),
    )

    def publish(job: Job, _diagnosis: object, code: int) -> int:
        home.tell(Concluded(job))
        return code

    entry.run(request, publish)
    return 0


def _end_with_stdin() -> None:
    """End, with what is known, when the starting distcheck has gone or has told us to stop; hear what it says."""
    while heard := os.read(0, 4096):
        if CLOSE in heard:
            from distcheck.run.request import NOBODY_ELSE

            os.kill(os.getpid(), NOBODY_ELSE)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
