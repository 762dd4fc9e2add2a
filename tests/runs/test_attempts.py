"""The child that remembers an attempt of torchrun, and the end of an agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent, RunAttempt
from distcheck.probe import process
from distcheck.run import attempts

pytestmark = pytest.mark.process
ATTEMPT = RunAttempt(1, {"node1|9": "node1"})


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Build what a run shares, of an agent that is this process and keeps its files in tmp_path."""
    agent = Agent(program="torchrun", pid=os.getpid(), arguments=("--nnodes=1:2",), exported=Variables({}))
    monkeypatch.setattr(process, "agent", lambda environ: agent if "TORCHELASTIC_RUN_ID" in environ else None)
    environ = dict(os.environ) | {
        "TORCHELASTIC_RUN_ID": "7",
        "TORCHELASTIC_ERROR_FILE": f"{tmp_path}/attempt_0/0/error.json",
    }
    asked = Asked(command="env", looks=("environment", "meeting"), timeout_seconds=60.0)
    return lambda: SimpleNamespace(
        asked=asked, memory=None, remaining=lambda _reserve=0.0: 30.0, request=SimpleNamespace(environ=environ)
    )


def recalled(run, attempt=None):
    async def once():
        found = await attempts.recall(run)
        attempts.remember(run, attempt)
        await run.memory.close(10.0)
        return found

    return asyncio.run(once())


def test_what_one_attempt_remembers_the_next_one_recalls(session):
    assert recalled(session(), ATTEMPT) == RunAttempt(0)
    assert recalled(session()) == ATTEMPT


def test_a_folder_that_hangs_is_given_up_and_no_process_stays(session, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "distcheck_attempt.json")  # to open it waits for a writer
    monkeypatch.setattr(attempts, "_READ_SECONDS", 1.0)
    run = session()
    found = asyncio.run(attempts.recall(run))
    assert isinstance(found, Missing)
    assert "did not answer within 1 s: its file system hangs" in found.reason
    started = time.monotonic()
    asyncio.run(run.memory.close(0.2))
    assert time.monotonic() - started < 10


def test_a_command_that_meets_nobody_remembers_nothing(session):
    run = session()
    run.asked = Asked(command="env", looks=("environment",), timeout_seconds=60.0)
    assert asyncio.run(attempts.recall(run)) is None
    assert run.memory is None


def ends_within(environ, seconds):
    """Return whether the end of the agent is noticed within these seconds."""

    async def wait():
        ended = asyncio.Event()
        with attempts.ending_with_agent(environ, ended.set):
            try:
                await asyncio.wait_for(ended.wait(), seconds)
            except asyncio.TimeoutError:
                return False
        return True

    return asyncio.run(wait())


def test_the_end_of_the_agent_is_noticed(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        agent = Agent(program="torchrun", pid=child.pid, arguments=(), exported=Variables({}))
        monkeypatch.setattr(process, "agent", lambda _environ: agent)
        assert not ends_within({"TORCHELASTIC_RUN_ID": "7"}, 0.1)
        child.kill()
        assert ends_within({"TORCHELASTIC_RUN_ID": "7"}, 10)
        assert not ends_within({}, 0.1), "not under torchrun"
