"""The ranks' output: only the last lines are kept, and a process shows its stack."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import soon

from distcheck.launch.local.forkserver import TELL_STACK
from distcheck.launch.local.output import Tail


@pytest.fixture
def heard():
    """Run a program that writes, and a test's coroutine beside it."""

    def run(program, body):
        async def main():
            words = Tail()
            ours, theirs = os.pipe()
            words.listen(ours)
            process = subprocess.Popen(  # noqa: ASYNC220 it returns once the program is started
                [sys.executable, "-c", program], stdout=theirs, stderr=theirs
            )
            os.close(theirs)
            try:
                return await body(words, process)
            finally:
                process.kill()
                process.wait()
                words.close()

        return asyncio.run(main())

    return run


@pytest.mark.process
def test_the_last_lines_are_there_when_the_program_has_ended(heard):
    async def body(words, process):
        await soon(lambda: process.poll() is not None)
        return words.last()

    assert heard("for n in range(100): print('line', n)", body).splitlines() == [f"line {n}" for n in range(88, 100)]


CRASH = """
import faulthandler, os, sys
faulthandler.enable(all_threads=False)
for n in range(100): print("line", n, flush=True)
os.abort()
"""


@pytest.mark.process
def test_a_crash_is_shown_from_its_beginning_with_the_lines_before(heard):
    async def body(words, process):
        await soon(lambda: process.poll() is not None)
        return words.last()

    lines = heard(CRASH, body).splitlines()
    assert lines[:5] == ["line 96", "line 97", "line 98", "line 99", "Fatal Python error: Aborted"]
    assert lines[-1].endswith("in <module>")


@pytest.mark.process
def test_a_program_that_prints_for_ever_is_heard_and_little_is_kept(heard):
    async def body(words, process):
        await asyncio.sleep(1)
        assert len(words._kept) <= 64 << 10
        return words.last()

    last = heard("while True: print('x' * 99)", body)
    assert len(last) <= 2000
    assert set(last) == {"x", "\n"}


CALLS = """
import ctypes, faulthandler, os, sys, time
faulthandler.register({signal}, all_threads=False)
def holds():
    print("ready", flush=True)
    while True:
        ctypes.PyDLL(None).usleep(50_000)
def outer():
    holds()
outer()
"""


@pytest.mark.process
def test_a_program_that_holds_the_interpreter_still_shows_its_stack(heard):
    async def body(words, process):
        await soon(lambda: "ready" in words.last())
        return await words.asked(lambda: os.kill(process.pid, TELL_STACK))

    calls = heard(CALLS.replace("{signal}", str(int(TELL_STACK))), body)
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
def test_an_answer_is_found_in_a_flood(heard):
    async def body(words, process):
        await soon(lambda: len(words._kept) == 64 << 10)
        calls = await words.asked(lambda: os.kill(process.pid, TELL_STACK))
        assert len(words._kept) <= 64 << 10
        return calls

    calls = heard(FLOOD.replace("{signal}", str(int(TELL_STACK))), body)
    assert [call.partition(" (")[0] for call in calls] == ["floods", "<module>"]


@pytest.mark.process
def test_one_that_does_not_answer_is_not_waited_for(heard):
    async def body(words, process):
        os.kill(process.pid, signal.SIGSTOP)
        start = time.monotonic()
        assert await words.asked(lambda: os.kill(process.pid, TELL_STACK)) == ()
        assert time.monotonic() - start < 5
        process.kill()
        process.wait()
        assert await words.asked(lambda: os.kill(process.pid, 0)) == ()

    heard("import time; time.sleep(60)", body)
