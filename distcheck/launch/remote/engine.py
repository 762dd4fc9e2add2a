"""Runs the commands that start probes, through ClusterShell, and ends them."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from distcheck.probe.ending import kill_group

_LOOK_SECONDS = 0.1
_END_SECONDS = 0.5
"""Between SIGTERM, on which srun and mpirun end their tasks, and SIGKILL."""

Wish = Literal["go on", "close", "stop", "end"]
"""What the commands should do: go on, stop waiting for missing processes, stop and report, or end now."""
CLOSE = b"close\n"
"""Sent to a probe's standard input over ssh: missing processes will not come."""


class Command(NamedTuple):
    """One command: a program of this machine, or a line for the shell of a node."""

    key: str
    """The node's name; the engine's for a program."""
    argv: tuple[str, ...] = ()
    """The program that starts all probes; empty when `line` goes to a node by ssh."""
    line: str = ""
    stdin: bytes = b""
    """Written to the node's standard input, which then stays open until the probe must stop."""


class Listener(Protocol):
    """Receives the output of the commands."""

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Process a line of a command's standard output or standard error."""

    def ended(self, key: str, code: int) -> None:
        """Record that a command has ended."""


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
    """
    from ClusterShell.Event import EventHandler
    from ClusterShell.Task import task_self

    task = task_self()
    workers: list[tuple[Command, Any]] = []
    said: list[Wish] = ["go on"]

    class Ears(EventHandler):  # type: ignore[misc]  # ClusterShell has no types
        def __init__(self, key: str) -> None:
            self.key = key

        def ev_read(self, worker: Any, _node: str, sname: str, msg: bytes) -> None:
            listener.line(self.key, msg, error=sname == worker.SNAME_STDERR)

        def ev_hup(self, _worker: Any, _node: str, rc: int) -> None:
            listener.ended(self.key, rc)

    class Clock(EventHandler):  # type: ignore[misc]
        abort_at = math.inf

        def ev_timer(self, _timer: Any) -> None:
            if time.monotonic() >= self.abort_at:
                for _, worker in workers:
                    _kill_group(worker)
                task.abort()
            wanted = wish()
            if said[0] in {wanted, "end"}:
                return
            said[0] = wanted
            for command, worker in workers:
                if wanted == "close":
                    if not command.argv:
                        worker.write(CLOSE)
                elif command.argv:
                    _signal(worker, signal.SIGUSR1 if wanted == "stop" else signal.SIGTERM)
                elif wanted == "stop":
                    worker.set_write_eof()
            if wanted == "end":
                self.abort_at = time.monotonic() + _END_SECONDS

    for stream in ("stdout_msgtree", "stderr_msgtree"):
        task.set_default(stream, False)  # noqa: FBT003 its own API; lines are read as they come; a node may print forever
    task.set_info("fanout", max(64, len(commands)))
    task.set_info("connect_timeout", max(1, round(connect_seconds)))
    task.set_info("ssh_path", "setsid ssh")
    for command in commands:
        ears = Ears(command.key)
        if command.argv:
            worker = task.shell(f"exec setsid {shlex.join(command.argv)} </dev/null", handler=ears, stderr=True)
        else:
            worker = task.shell(command.line, nodes=command.key, handler=ears, stderr=True, tree=False)
        if command.stdin:
            worker.write(command.stdin)
        workers.append((command, worker))
    task.timer(_LOOK_SECONDS, handler=Clock(), interval=_LOOK_SECONDS, autoclose=True)
    with _added(environment):
        task.run()


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
