"""Jobs that run on this machine, started in each of the ways that people start them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from hang.expected import PROGRAM, Case
from hang.starter import COMMAND, ROOM
from real.agents import TORCHRUN
from real.waiting import until

RANKS = 4
SETTLING_SECONDS = 5
OTHER_UID = 65534
AS_OTHER = [
    # The Python of the tests may be in a home that only its owner may enter.
    "setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search",
]  # fmt: skip
LAUNCHERS = ("forked", "torchrun", "by hand", "spawn", "fork")


class Starter:
    """The process that forks ranks; with `user` it is another one than the tests'."""

    def __init__(self, user: list[str]) -> None:
        environ = {**os.environ, **ROOM, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*user, *COMMAND],
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def fork(self, argv: list[str], environs: list[dict[str, str]]) -> list[psutil.Process]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"argv": argv, "environs": environs}) + "\n")
        self.process.stdin.flush()
        return [_process(pid) for pid in json.loads(self.process.stdout.readline())]

    def end(self) -> None:
        self.process.communicate(timeout=30)


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


class Started:
    """A job that runs, with all of its processes."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.tops: list[psutil.Process] = []
        """What was started: the agent, or the ranks themselves."""
        self.popens: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> dict[int, int]:
        """Return the ranks' pids, of those that have said that they are there."""
        found = {}
        for path in self.folder.glob("ready.?"):
            found[int(path.suffix[1:])] = int(path.read_text())
        return found

    def processes(self) -> list[psutil.Process]:
        """Return all that live of what was started, and their descendants."""
        found = []
        for top in self.tops:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [top, *top.children(recursive=True)]
        return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def states(self) -> dict[int, tuple[str, int]]:
        """Return of each thread its state, and the pid of its tracer or 0."""
        found = {}
        for process in self.processes():
            for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
                with contextlib.suppress(OSError):
                    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                    found[int(status.parent.name)] = (lines["State"].split()[0], int(lines["TracerPid"]))
        return found

    def ready(self) -> None:
        """Wait until every rank is at the line of its fault, and until those that hang have come to rest."""

        def there() -> bool:
            assert self.tops, "nothing was started"
            assert len(self.processes()) >= len(self.tops) - len(self.case.missing), self.log()
            return len(self.pids) == RANKS

        until(there, 120)
        if "hung" in self.case.answers and "slow" not in self.case.answers:
            before: dict[int, str] | None = None
            end = time.monotonic() + SETTLING_SECONDS  # one that polls never does
            while before != (now := self._switches()) and time.monotonic() < end:
                before = now
                time.sleep(0.5)

    def _switches(self) -> dict[int, str]:
        """Return how often the main threads of the ranks have been switched, but for one that polls for the others."""
        found = {}
        for rank, pid in self.pids.items():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                found[rank] = "".join(line for line in lines if line.startswith(("State", "voluntary")))
        return {rank: text for rank, text in found.items() if rank != 0}

    def log(self) -> str:
        """Return the last of what the ranks printed."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("log.*")))

    def steps(self) -> int:
        """Return how many steps the ranks have taken together."""
        return sum(path.read_text().count("\n") for path in self.folder.glob("steps.?"))

    def end(self) -> None:
        """Kill all of it, the agents first, which would report the others' deaths.

        Trackers of multiprocessing end by themselves when the others have, and remove what these left in /dev/shm.
        """
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any("resource_tracker" in word for word in process.cmdline()):
                    process.kill()
        for popen in self.popens:
            popen.wait(30)
        psutil.wait_procs(left, 30)


def environ(rank: int, port: int, **more: str) -> dict[str, str]:
    """Return the variables that a person sets who starts a rank by hand."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), **where, **more}


def start(
    launcher: str,
    case: Case,
    folder: Path,
    port: int,
    temporary: str,
    starter: Callable[[], Starter],
    user: list[str],
    **more: str,
) -> Started:
    """Start the job of a case.

    temporary: its folder for temporary files, with a short name: data loaders have sockets there.
    """
    job = Started(case, folder)
    shared = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "TMPDIR": temporary, **more}
    program = [str(PROGRAM), case.name, str(folder)]
    if launcher == "forked":
        logs = [str(folder / f"log.{rank}") for rank in range(RANKS)]
        environs = [environ(rank, port, LOG=logs[rank], **shared) for rank in range(RANKS)]
        job.tops = [process for process in starter().fork(program, environs) if process is not None]
        return job
    commands: dict[str, list[tuple[list[str], dict[str, str]]]] = {
        "torchrun": [([*TORCHRUN, f"--nproc-per-node={RANKS}", f"--master-port={port}", *program], {})],
        "by hand": [([sys.executable, *program], environ(rank, port)) for rank in range(RANKS)],
    }
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for how in ("spawn", "fork"):
        commands[how] = [([sys.executable, *program, f"--start={how}"], own)]
    for number, (command, variables) in enumerate(commands[launcher]):
        with (folder / f"log.{number}").open("ab") as log:
            popen = subprocess.Popen(
                [*user, "setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**shared, **variables}, start_new_session=True,
            )  # fmt: skip
        job.popens.append(popen)
        job.tops.append(psutil.Process(popen.pid))
    return job
