"""Runs the commands that start probes, through ClusterShell, and ends them.

Logins by ssh start in a window. A login that has not answered holds one of `PLACES` places, for `HOLD_SECONDS` at most.
So no more than `PLACES` key exchanges compete for this machine's CPUs, whose slowness ssh would take for an unreachable
node, and a node that hangs delays the others by less than its own timeout: of N nodes the last starts after
N / PLACES * HOLD_SECONDS at the latest.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self

from distcheck.facts.errors import UsageError
from distcheck.facts.touch import which
from distcheck.launch.remote.spec import CLOSE, Command
from distcheck.probe import open_files
from distcheck.probe.ending import kill_group

PLACES = 64
"""Logins that begin at the same time."""
HOLD_SECONDS = 0.5
_LOOK_SECONDS = 0.1
_END_SECONDS = 0.5
"""Between SIGTERM, on which srun and mpirun end their tasks, and SIGKILL."""
_FILES_EACH = 3
"""Pipes to and from a command."""
_FILES_BESIDE = 64

Wish = Literal["go on", "close", "stop", "end"]
"""What the commands should do: go on, stop waiting for missing processes, stop and report, or end now."""


class Listener(Protocol):
    """Receives the output of the commands."""

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Process a line of a command's standard output or standard error."""

    def ended(self, key: str, code: int) -> None:
        """Record that a command has ended."""


def last_start_seconds(commands: int) -> float:
    """Return after how many seconds the last of so many commands starts at the latest."""
    return max(0, -(-commands // PLACES) - 1) * HOLD_SECONDS


def run(
    commands: Sequence[Command],
    listener: Listener,
    wish: Callable[[], Wish],
    *,
    connect_seconds: float,
    environment: Mapping[str, str],
) -> None:
    """Run commands in parallel until all have ended or `wish` ends them.

    `wish` is called ten times a second.

    To stop, programs of this machine get SIGUSR1, which srun and mpirun forward to the probes; over ssh a probe's
    standard input is closed. `environment` is added to the programs' own. They run in their own sessions, so that
    Ctrl-C reaches only distcheck, which then asks the probes for their facts.

    Raises:
        UsageError: this machine lacks a program for the commands, or does not allow as many open files as they need.
    """
    _require_programs(commands)
    task = task_self()
    for stream in ("stdout_msgtree", "stderr_msgtree"):
        task.set_default(stream, False)  # noqa: FBT003 its own API; lines are read as they come; a node may print forever
    task.set_info("fanout", max(PLACES, len(commands)))
    task.set_info("connect_timeout", max(1, round(connect_seconds)))
    task.set_info("ssh_path", "setsid ssh")
    with _files_for(len(commands)), _added(environment):
        starts = _Starts(task, commands, listener)
        starts.fill()
        task.timer(_LOOK_SECONDS, handler=_Clock(starts, wish), interval=_LOOK_SECONDS, autoclose=True)
        task.run()


class _Starts:
    """Starts the commands in order, as places become free, and keeps what runs."""

    def __init__(self, task: Any, commands: Sequence[Command], listener: Listener) -> None:
        self.task, self.listener = task, listener
        self.workers: dict[str, tuple[Command, Any]] = {}
        self._waiting = deque(commands)
        self._held_until: dict[str, float] = {}

    def stop(self) -> None:
        """Start no more commands."""
        self._waiting.clear()

    def fill(self) -> None:
        """Give the free places to the commands that come next."""
        now = time.monotonic()
        for key in [key for key, until in self._held_until.items() if until <= now]:
            del self._held_until[key]
        while self._waiting and len(self._held_until) < PLACES:
            command = self._waiting.popleft()
            self._held_until[command.key] = now + HOLD_SECONDS
            try:
                self._start(command)
            except OSError:  # ClusterShell then ends the others, whose ends must start no more
                self.stop()
                raise

    def free(self, key: str) -> None:
        """Pass on the place of a command that has answered or ended."""
        if self._held_until.pop(key, None) is not None and self._waiting:
            self.fill()

    def _start(self, command: Command) -> None:
        ears = _Ears(command.key, self)
        if command.argv:
            line = f"exec setsid {shlex.join(command.argv)} </dev/null"
            worker = self.task.shell(line, handler=ears, stderr=True)
        else:
            host = command.host or command.key
            worker = self.task.shell(command.line, nodes=host, handler=ears, stderr=True, tree=False)
        if command.stdin:
            worker.write(command.stdin)
        self.workers[command.key] = (command, worker)


class _Ears(EventHandler):  # type: ignore[misc]  # ClusterShell has no types
    """Passes on the output and the end of one command."""

    def __init__(self, key: str, starts: _Starts) -> None:
        self._key, self._starts = key, starts

    def ev_read(self, worker: Any, _node: str, sname: str, msg: bytes) -> None:
        error = sname == worker.SNAME_STDERR
        self._starts.listener.line(self._key, msg, error=error)
        if not error:  # ssh prints its own warnings before it has logged in
            self._starts.free(self._key)

    def ev_hup(self, _worker: Any, _node: str, rc: int) -> None:
        self._starts.listener.ended(self._key, rc)
        self._starts.free(self._key)


# ClusterShell asks for the signature at each line, which takes longer than the line: a node that prints without end
# would keep this process from its deadline.
_Ears.ev_read.__signature__ = inspect.signature(_Ears.ev_read)  # type: ignore[attr-defined]


class _Clock(EventHandler):  # type: ignore[misc]
    """Asks ten times a second what the commands should do, and does it."""

    def __init__(self, starts: _Starts, wish: Callable[[], Wish]) -> None:
        self._starts, self._wish = starts, wish
        self._done: Wish = "go on"
        self._abort_at = math.inf

    def ev_timer(self, _timer: Any) -> None:
        starts = self._starts
        if time.monotonic() >= self._abort_at:
            for _, worker in list(starts.workers.values()):
                _kill_group(worker)
            starts.task.abort()
        starts.fill()
        wanted = self._wish()
        if self._done in {wanted, "end"}:
            return
        self._done = wanted
        if wanted in {"stop", "end"}:
            starts.stop()
        for command, worker in list(starts.workers.values()):
            _tell(command, worker, wanted)
        if wanted == "end":
            self._abort_at = time.monotonic() + _END_SECONDS


def _tell(command: Command, worker: Any, wanted: Wish) -> None:
    """Make a running command do what is wanted."""
    if wanted == "close":
        if not command.argv:
            worker.write(CLOSE)
    elif command.argv:
        _signal(worker, signal.SIGUSR1 if wanted == "stop" else signal.SIGTERM)
    elif wanted == "stop":
        worker.set_write_eof()


def _require_programs(commands: Sequence[Command]) -> None:
    programs = {program for command in commands for program in ("setsid", *(command.argv or ("ssh",))[:1])}
    missing = sorted(program for program in programs if not which(program))
    if missing:
        raise UsageError(
            f"PATH of this machine, from which the probes are started, has no {' and no '.join(missing)}: install what "
            "is missing (in a container, in its image), or run distcheck on a machine that has it"
        )


@contextlib.contextmanager
def _files_for(commands: int) -> Iterator[None]:
    """Raise the limit of open files for this many commands, and restore it."""
    files = _FILES_EACH * commands + _FILES_BESIDE
    limit, before = open_files.raise_limit(files)
    try:
        if limit < files:
            raise UsageError(
                f"{commands} nodes need {files} open files on this machine, and its limit is {limit}: raise the hard "
                "limit (ulimit -Hn), or start the probes with srun or mpirun (--launcher)"
            )
        yield
    finally:
        open_files.restore_limit(before)


@contextlib.contextmanager
def _added(environment: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment, which ClusterShell's children inherit."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _signal(worker: Any, signum: signal.Signals) -> None:
    """Send a signal to the programs of a worker that still run."""
    for client in worker.clients:
        process = getattr(client, "popen", None)
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signum)


def _kill_group(worker: Any) -> None:
    """Kill all processes in the programs' sessions; a killed wrapper alone leaves them behind."""
    for client in worker._engine_clients():  # noqa: SLF001 the only access that all its workers have
        process = getattr(client, "popen", None)
        # The pid cannot be reused before the group leader is reaped.
        if process is not None and process.returncode is None and os.getpgid(0) != process.pid:
            kill_group(process.pid)
