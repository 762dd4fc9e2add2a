"""Run the commands that start probes, through ClusterShell: hear every line, tell them to stop, end what is left."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

_LOOK_SECONDS = 0.1
_END_SECONDS = 0.5
"""Between SIGTERM, by which srun and mpirun take their tasks along, and SIGKILL."""

Wish = Literal["go on", "close", "stop", "end"]
"""What is wanted of the commands: go on, wait for nobody else, stop and tell what you know, or be ended now."""
CLOSE = b"close\n"
"""Said on the standard input of a probe at the end of an ssh connection: those who are missing will not come."""


class Command(NamedTuple):
    """One command: a program of this machine, or a line for the shell of a node."""

    key: str
    """The node's name; for a program the engine's."""
    argv: tuple[str, ...] = ()
    """The program that starts all probes; empty when `line` goes to a node by ssh."""
    line: str = ""
    stdin: bytes = b""
    """Written to the node's standard input, which then stays open until the probe shall stop."""


class Listener(Protocol):
    """Who hears what the commands say."""

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Take a line of a command's standard output, or of its standard error."""

    def ended(self, key: str, code: int) -> None:
        """Take note that a command has ended."""


def run(
    commands: Sequence[Command],
    listener: Listener,
    wish: Callable[[], Wish],
    *,
    connect_seconds: float,
    environment: Mapping[str, str],
) -> None:
    """Run commands side by side until all have ended or `wish` says that it is over; it is asked ten times a second.

    Programs of this machine are told to stop by SIGUSR1, which srun and mpirun hand on to the probes; probes at the end
    of an ssh connection by the end of their standard input. `environment` is added to the programs' own. They run in
    sessions of their own: Ctrl-C is for distcheck, which then asks the probes for what they know.
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
        task.set_default(stream, False)  # noqa: FBT003 its own way; every line is heard as it comes; a node may print for ever
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
    """Add variables to this process's environment, from which ClusterShell's children take theirs."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _signal(worker: Any, signum: signal.Signals) -> None:
    """Send a signal to the programs of a worker; those that have ended are left alone."""
    for client in worker.clients:
        process = getattr(client, "popen", None)
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signum)


def _kill_group(worker: Any) -> None:
    """Kill what programs have started in their sessions; a wrapper that is killed alone leaves it behind."""
    for client in worker._engine_clients():  # noqa: SLF001 the one way to them that all its workers have
        process = getattr(client, "popen", None)
        # While the leader is not reaped nobody else can have its number.
        if process is not None and process.returncode is None and os.getpgid(0) != process.pid:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
