"""A program that a test runs in a node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from real.ended import Ended


class Running:
    """Waits, reads and signals; the host's process is nsenter, the program is its child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.started = time.monotonic()
        self._pid: int | None = None
        self._handle: int | None = None

    @property
    def pid(self) -> int:
        """The program's pid as the host sees it."""
        until = time.monotonic() + 10
        while self._pid is None:
            if self.process.poll() is not None or time.monotonic() > until:
                raise ProcessLookupError(f"not in its node: {self.process.args}")
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children:
                self._handle = os.pidfd_open(int(children[0]))
                self._pid = int(children[0])
        return self._pid

    def interrupt(self, signum: signal.Signals) -> None:
        """Send the program a signal; nothing happens when it has ended."""
        with suppress(ProcessLookupError):
            assert self.pid
            assert self._handle is not None
            signal.pidfd_send_signal(self._handle, signum)

    def wait(self, timeout: float = 90) -> Ended:
        """Wait for the program's end, or end it and fail the test when that takes too long."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.interrupt(signal.SIGKILL)
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {timeout} s: {self.process.args}\n{out}\n{err}") from None
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)

    def close(self) -> None:
        """Wait no longer and read no more; the program itself is the node's."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
