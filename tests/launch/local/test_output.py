"""The ranks' output: only the last lines are kept, and a process shows its stack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from real.waiting import soon

from distcheck.launch.local.forkserver import TELL_STACK
from distcheck.launch.local.output import Tail


@asynccontextmanager
async def heard(program: str) -> AsyncIterator[tuple[Tail, subprocess.Popen[bytes]]]:
    """Run a program that writes, and keep the tail of what it writes."""
    words = Tail()
    ours, theirs = os.pipe()
    words.listen(ours)
    process = subprocess.Popen(  # noqa: ASYNC220 it returns once the program is started
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        yield words, process
    finally:
        process.kill()
        process.wait()
        words.close()


@pytest.mark.process
async def test_the_last_lines_are_there_when_the_program_has_ended():
    async with heard("for n in range(100): print('line', n)") as (words, process):
        await soon(lambda: process.poll() is not None)
        assert words.last().splitlines() == [f"line {n}" for n in range(88, 100)]


CRASH = """
import faulthandler, os, sys
faulthandler.enable(all_threads=False)
for n in range(100): print("line", n, flush=True)
os.abort()
"""


@pytest.mark.process
async def test_a_crash_is_shown_from_its_beginning_with_the_lines_before():
    async with heard(CRASH) as (words, process):
        await soon(lambda: process.poll() is not None)
        lines = words.last().splitlines()
    assert lines[:5] == ["line 96", "line 97", "line 98", "line 99", "Fatal Python error: Aborted"]
    assert lines[-1].endswith("in <module>")


CALLS = """
import ctypes, faulthandler, os, sys, time
faulthandler.register({signal}, all_threads=False)
usleep = ctypes.PyDLL(None).usleep  # to look for it takes calls of its own
def holds():
    print("ready", flush=True)
    while True:
        usleep(50_000)
def outer():
    holds()
outer()
"""


@pytest.mark.process
async def test_a_program_that_holds_the_interpreter_still_shows_its_stack():
    async with heard(CALLS.replace("{signal}", str(int(TELL_STACK)))) as (words, process):
        await soon(lambda: "ready" in words.last())
        calls = await words.asked(lambda: os.kill(process.pid, TELL_STACK))
    assert [call.partition(" (")[0] for call in calls] == ["holds", "outer", "<module>"]


FLOOD = """
import faulthandler, os
faulthandler.register({signal}, all_threads=False)
def floods():
    while True:
        os.write(1, b"words " * 1000)
floods()
"""


@pytest.mark.process
async def test_an_answer_is_found_in_a_flood():
    async with heard(FLOOD.replace("{signal}", str(int(TELL_STACK)))) as (words, process):
        await soon(lambda: len(words._kept) == 64 << 10)
        calls = await words.asked(lambda: os.kill(process.pid, TELL_STACK))
        assert len(words._kept) <= 64 << 10
    assert [call.partition(" (")[0] for call in calls] == ["floods", "<module>"]


@pytest.mark.process
async def test_one_that_does_not_answer_is_not_waited_for():
    async with heard("import time; time.sleep(60)") as (words, process):
        os.kill(process.pid, signal.SIGSTOP)
        start = time.monotonic()
        assert await words.asked(lambda: os.kill(process.pid, TELL_STACK)) == ()
        assert time.monotonic() - start < 5
        process.kill()
        process.wait()
        assert await words.asked(lambda: os.kill(process.pid, 0)) == ()
