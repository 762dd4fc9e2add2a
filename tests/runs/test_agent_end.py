"""The end of a rank's torchelastic agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent
from distcheck.probe import process
from distcheck.run import agent_end

pytestmark = pytest.mark.process


def ends_within(environ, seconds):
    """Return whether the end of the agent is noticed within these seconds."""

    async def wait():
        ended = asyncio.Event()
        with agent_end.ending_with_agent(environ, ended.set):
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
