from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from distcheck.probe import process


def test_a_process_knows_its_command_and_ancestors():
    assert process.command_of(os.getpid())[0].endswith(("python", "python3", "python3.11")) or sys.executable
    assert process.ancestors()


def test_a_stopped_process_shows_state_t():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        child.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 5
        while process.state_of(child.pid) != "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert process.state_of(child.pid) == "T"
    finally:
        child.kill()
        child.wait()
    assert process.state_of(child.pid) == ""


def test_a_process_that_is_gone_has_no_command_parent_or_state():
    child = subprocess.Popen(["true"])
    child.wait()
    assert (process.command_of(child.pid), process.parent_of(child.pid), process.state_of(child.pid)) == ((), 0, "")
