"""A probe on another node: ``python -m distcheck.run.remote_probe ASSIGNMENT``.

It works as inside a launcher, and also sends its facts home on standard output: its identity at once, its own facts as
soon as it has them, and, from the process that concludes, the whole job. So the report is complete even if no two nodes
can reach each other, and as complete as possible if a node dies. Its exit code is 0 whatever the verdict, so that the
launcher does not end the other probes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from distcheck import __version__
from distcheck.facts.job import Job
from distcheck.launch import signals
from distcheck.launch.remote import assignment as assignments
from distcheck.launch.remote import frames
from distcheck.launch.remote.assignment import Assignment
from distcheck.launch.remote.frames import Arrived, Collected, Concluded, Message
from distcheck.launch.remote.spec import CLOSE
from distcheck.run.garbage import hardly_searched
from distcheck.run.streams import hold_standard_streams

STOP = signal.SIGUSR1
"""srun, Open MPI's mpirun and MPICH's mpiexec forward it to every task; on SIGTERM they end all tasks."""
_BROKEN = 70


class _Home:
    """The channel home: the standard output that this process was started with."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)  # other output must not mix with the frames
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
    home.tell(Arrived(__version__))
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
    try:
        return _probe(assignment, home, start)
    except Exception as error:  # noqa: BLE001 the report shows this line where a traceback would fill it
        sys.stderr.write(f"distcheck {__version__}: the probe failed: {type(error).__name__}: {error}\n")
        return _BROKEN


def _probe(assignment: Assignment, home: _Home, start: float) -> int:
    environ = assignments.environment(assignment, os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        placements = assignments.placements(assignment, environ)
    except ValueError as error:
        sys.stderr.write(f"distcheck {__version__}: {error}\n")
        return _BROKEN
    if assignment.asked.measures:
        from distcheck.launch.local import program

        program.begin()  # the import of torch takes longer than all else, so it comes before the other imports
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
    """Read commands from stdin; at its end, which means stop, end with what is known."""
    while heard := os.read(0, 4096):
        if CLOSE in heard:
            from distcheck.run.request import NOBODY_ELSE

            os.kill(os.getpid(), NOBODY_ELSE)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    hold_standard_streams()
    signals.reset()
    with hardly_searched():
        sys.exit(main())
