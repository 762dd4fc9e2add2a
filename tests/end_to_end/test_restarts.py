"""The end of torchrun's agent ends its ranks."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest
from real.waiting import until

AGENT = """
import os, subprocess, sys
folder, port, attempts = sys.argv[1:4]
for number, (rank, world) in enumerate(attempt.split("/") for attempt in attempts.split(",")):
    places = {"RANK": rank, "WORLD_SIZE": world, "GROUP_RANK": rank, "GROUP_WORLD_SIZE": world}
    places |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places |= {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_RESTART_COUNT": str(number), "TORCHELASTIC_MAX_RESTARTS": "3"}
    places |= {"TORCHELASTIC_ERROR_FILE": f"{folder}/attempt_{number}/0/error.json"}
    os.makedirs(f"{folder}/attempt_{number}/0")
    code = subprocess.call([sys.executable, "-m", "distcheck", *sys.argv[4:]], env=os.environ | places)
raise SystemExit(code)
"""
"""A program of the name torchrun that starts its rank again and again, and need not import torch."""


@pytest.fixture
def agent(start, port, tmp_path):
    """Start an agent with a folder of its own; attempts are RANK/WORLD_SIZE, separated by commas."""
    program = tmp_path / "torchrun"
    program.write_text(AGENT)

    def run(name, attempts, *options):
        words = [sys.executable, str(program), str(tmp_path / name), str(port), attempts]
        return start("env", *options, program=words)

    return run


def test_a_rank_whose_agent_was_killed_ends_and_does_not_join_the_next_attempt(agent, tmp_path):
    output = tmp_path / "report.txt"
    killed = agent("a", "0/2", "--output", str(output))
    (rank,) = until(lambda: psutil.Process(killed.process.pid).children())
    # It listens: it waits for rank 1, which never comes.
    until(lambda: [c for c in rank.net_connections("tcp") if c.status == psutil.CONN_LISTEN])
    killed.interrupt(signal.SIGKILL)
    until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE, 5)  # --join-timeout is 20 s
    assert "the run was ended by the end of its torchrun agent" in output.read_text()
    first, second = [run.wait() for run in (agent("b", "0/2", "--format", "json"), agent("c", "1/2"))]
    assert (first.code, second.code) == (0, 0), first
    assert [row["status"] for row in first.report["ranks"]] == ["ok", "ok"]
