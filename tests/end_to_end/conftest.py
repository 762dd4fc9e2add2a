"""Real runs of distcheck: real processes, real sockets, and nothing of them left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from real.cgroups import cgroups
from real.ended import Ended
from real.ports import claimed_port
from real.waiting import until

from distcheck.probe.gpu import accelerator

_MARK = "DISTCHECK_TEST_MARK"
cgroups = pytest.fixture(cgroups)


class Running:
    """A run that goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.started = time.monotonic()

    def wait(self, timeout: float = 90) -> Ended:
        out, err = self.process.communicate(timeout=timeout)
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)

    def interrupt(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def begun(self, timeout: float = 60) -> None:
        """Wait until distcheck has read its arguments and looks at the job: then it runs an event loop."""

        def waits() -> bool:
            with contextlib.suppress(FileNotFoundError):  # its files open and close while they are looked at
                files = Path(f"/proc/{self.process.pid}/fd").iterdir()
                return any("eventpoll" in str(file.readlink()) for file in files)
            return False

        until(waits, timeout)

    def ranks(self, count: int, timeout: float = 60) -> list[psutil.Process]:
        """Wait until the ranks begin to measure, and return them in rank order.

        They are forked before all processes of the job have met; a rank that has its task has a second thread.
        """

        def begun() -> list[psutil.Process]:
            assert self.process.poll() is None, f"it ended before its {count} ranks began: {self.wait()}"
            # The run starts short-lived processes too, which may end while they are looked at.
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children():
                    ranks = child.children()
                    named = all(p.name().startswith("distcheck r") for p in ranks)
                    if len(ranks) == count and named and all(p.num_threads() > 1 for p in ranks):
                        return sorted(ranks, key=lambda p: int(p.name().removeprefix("distcheck r")))
            return []

        return until(begun, timeout)


def _clean(environ: dict[str, str]) -> dict[str, str]:
    """Return an environment without variables of a launcher or a test runner."""
    prefixes = ("SLURM", "OMPI", "PMI", "TORCHELASTIC", "PET_", "DISTCHECK", "NCCL_", "GLOO_", "PYTEST")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CI"}
    return {k: v for k, v in environ.items() if k not in names and not k.startswith(prefixes)}


@pytest.fixture
def mark():
    return secrets.token_hex(8)


@pytest.fixture(scope="session")
def on_cpus():
    """Return variables with which a run on a machine with GPUs uses its CPUs, as on one without."""
    return {} if accelerator() == "none" else {"DISTCHECK_BACKEND": "gloo"}


@pytest.fixture
def start(mark, tmp_path, on_cpus):
    """Start distcheck; whatever the test does, none of its processes survives it."""
    started: list[subprocess.Popen[str]] = []
    before = set(Path("/dev/shm").iterdir())
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(*args: str, env: dict[str, str] | None = None, program: list[str] | None = None, **more: Any) -> Running:
        program = program or [sys.executable, "-m", "distcheck"]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, **more}
        # The token keeps side by side tests apart, as it keeps two jobs of one user on one host apart.
        ours = {_MARK: mark, "DISTCHECK_TOKEN": mark, "TMPDIR": str(temporary)}
        has_gpus = "DISTCHECK_FAKE_NVML" in (env or {})
        environ = _clean(dict(os.environ)) | ({} if has_gpus else on_cpus) | ours | (env or {})
        process = subprocess.Popen([*program, *args], text=True, stdin=subprocess.DEVNULL, env=environ, **more)
        started.append(process)
        return Running(process)

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    left = _survivors(mark)
    for process in left:
        process.kill()
    assert not left, f"left behind: {[p.cmdline() for p in left]}"
    # Tests beside this one may have segments of their own, which they look after.
    beside = ("distcheck-test-", "nccl-distcheck")
    assert {p for p in Path("/dev/shm").iterdir() if not p.name.startswith(beside)} <= before
    # torchrun and the jobs leave folders of their own behind.
    assert [e.name for e in temporary.iterdir() if not e.name.startswith(("torchelastic_", "torchinductor_"))] == []


def _survivors(mark: str, patience: float = 10.0) -> list[psutil.Process]:
    """Return the processes that carry the test's mark in their environment after a moment's patience."""
    until = time.monotonic() + patience
    while True:
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
            except psutil.Error:
                continue
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


@pytest.fixture
def distcheck(start):
    """Run distcheck to its end."""

    def run(*args: str, **more: Any) -> Ended:
        return start(*args, **more).wait()

    return run


@pytest.fixture
def gpu(distcheck, fake_nvml):
    """Run ``distcheck gpu --nproc N`` on the node that `text` describes, with further variables."""

    def gpu(nproc, text, *args, more_libraries="", **variables):
        told = fake_nvml.variables(text)
        told["LD_LIBRARY_PATH"] += f":{more_libraries}" if more_libraries else ""
        return distcheck("gpu", "--nproc", str(nproc), "--format", "json", *args, env=told | variables)

    return gpu


@pytest.fixture
def port(worker_id):
    """A free port below the ephemeral range that no other test takes."""
    with claimed_port(worker_id) as claimed:
        yield claimed


@pytest.fixture
def other_port(worker_id):
    """Another one."""
    with claimed_port(worker_id) as claimed:
        yield claimed


@pytest.fixture
def by_hand(start, port):
    """Start one process per rank as a person in several shells would; returns them in the order given."""

    def run(
        command: str, ranks: list[int], world_size: int, *args: str, master_port: int = port, **more: Any
    ) -> list[Running]:
        return [
            start(
                command, "--rank", str(rank), "--world-size", str(world_size),
                "--master-addr", "127.0.0.1", "--master-port", str(master_port), *args, **more,
            )
            for rank in ranks
        ]  # fmt: skip

    return run
