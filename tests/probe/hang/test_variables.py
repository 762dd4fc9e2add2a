"""The variables that a real process has now, and not only those with which it started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.probe.hang.processes import ProcessTable
from distcheck.probe.hang.variables import live

pytestmark = pytest.mark.process
SYSTEM = "/usr/bin/python3"
PYTHONS = sorted({sys.executable, *([SYSTEM] if Path(SYSTEM).exists() else [])})


@pytest.fixture
def variables():
    """Return what is read of a process that runs a line."""
    started = []

    def read(python: str, line: str, **environ: str) -> dict[str, str]:
        words = [python, "-c", f"import os; {line}; print(flush=True); input()"]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe))
        assert started[-1].stdout.readline()
        return live(Path(f"/proc/{started[-1].pid}"))

    yield read
    for each in started:
        each.communicate(b"\n")


@pytest.mark.parametrize("python", PYTHONS)
def test_those_set_later_are_read_and_others_are_not(python, variables):
    found = variables(python, "os.environ.update(RANK='3', TOKEN='secret')", WORLD_SIZE="4", HOME="/" + "x" * 400)
    assert found == {"RANK": "3", "WORLD_SIZE": "4"}


def test_those_that_a_title_overwrites_are_read(variables):
    """As setproctitle does it: libc's list goes elsewhere, and then the memory of the first one is overwritten."""
    line = "kept = dict(os.environ); os.environ.clear(); os.environ.update(kept, MASTER_ADDR='node1')"
    assert variables(sys.executable, line, RANK="1") == {"RANK": "1", "MASTER_ADDR": "node1"}


def test_a_process_that_has_ended_is_not_one_that_may_not_be_read():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert ProcessTable().environment(ended.pid) == {}


def test_a_process_that_is_gone_or_belongs_to_the_kernel_has_none():
    assert live(Path("/proc/2")) == {}
    assert live(Path("/proc/0")) == {}
