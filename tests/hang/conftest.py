"""Real jobs that hang or not, what `distcheck hang` says about them, and nothing of them left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hang.expected import Case
from hang.started import AS_OTHER, OTHER_UID, Started, Starter, start
from real.ports import claimed_port
from real.waiting import until


class Look(NamedTuple):
    """What one look said."""

    code: int
    hang: dict[str, Any]
    report: dict[str, Any]
    stopped: set[int]
    """Threads that were stopped or traced meanwhile, and had not been before."""

    def shown(self) -> str:
        return json.dumps({"code": self.code, **self.hang}, indent=1)[:6000]


@pytest.fixture(scope="session")
def _starters() -> Iterator[dict[bool, Starter]]:
    starters: dict[bool, Starter] = {}
    yield starters
    for starter in starters.values():
        starter.end()


@pytest.fixture
def job(tmp_path, worker_id, _starters) -> Iterator[Any]:
    """Start the job of a case, with all ranks at the line of its fault; all of it is gone after the test."""
    with contextlib.ExitStack() as ends:

        def run(launcher: str, case: Case, *, other: bool = False, ready: bool = True, **more: str) -> Started:
            folder = tmp_path / case.name
            folder.mkdir()
            temporary = ends.enter_context(tempfile.TemporaryDirectory(prefix="hang"))
            for made in (folder, temporary) if other else ():
                os.chown(made, OTHER_UID, OTHER_UID)
            user = AS_OTHER if other else []
            port = ends.enter_context(claimed_port(worker_id))

            def starter() -> Starter:
                if other not in _starters:
                    _starters[other] = Starter(user)
                return _starters[other]

            started = start(launcher, case, folder, port, temporary, starter, user, **more)
            ends.callback(started.end)
            if ready:
                started.ready()
            return started

        yield run


@pytest.fixture
def frozen_mount(tmp_path) -> Iterator[Path]:
    """Mount an empty file system from a file, and freeze it; whoever writes to it is in state D until it is thawed."""
    if os.getuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("a frozen file system needs root and loop devices")
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    image.touch()
    os.truncate(image, 16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    made = subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device can be mounted here: {made.stderr.strip()}")
    try:
        subprocess.run(["fsfreeze", "--freeze", mount], check=True)
        yield mount
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", mount], check=False, capture_output=True)
        until(lambda: subprocess.run(["umount", mount], check=False, capture_output=True).returncode == 0)


@pytest.fixture
def look():
    """Look at a job with `distcheck hang`, and at its threads meanwhile."""

    def run(job: Started, *options: str, other: bool = False, inside: Sequence[str] = ()) -> Look:
        user = AS_OTHER if other else []
        alive = {process.pid for process in job.processes()}
        pids = [word for pid in job.pids.values() if pid in alive for word in ("--pid", str(pid))]
        before = {thread for thread, (state, tracer) in job.states().items() if state in "tT" or tracer}
        stopped: set[int] = set()
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                stopped.update(thread for thread, (state, tracer) in job.states().items() if state in "tT" or tracer)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            ended = subprocess.run(
                [*inside, *user, sys.executable, "-m", "distcheck", "hang", "--format", "json", *pids, *options],
                capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=310, check=False, cwd="/",
            )  # fmt: skip
        finally:
            over.set()
            watching.join()
        after = {thread for thread, (state, tracer) in job.states().items() if state in "tT" or tracer}
        assert after <= before, "threads were left stopped or traced"
        assert ended.stdout.count("\n") == 1, ended
        report = json.loads(ended.stdout)
        return Look(ended.returncode, report["hang"], report, stopped - before)

    return run
