"""The end of torchrun's agent, and what the ranks of its next attempt find of the earlier one."""

from __future__ import annotations

import signal
import sys
import time

import psutil

AGENT = """
import os, subprocess, sys
ranks = []
for rank in ("0", "1")[: int(sys.argv[1])]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    numbers |= {"TORCHELASTIC_RUN_ID": "7", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
    ranks.append(subprocess.Popen([sys.executable, "-m", "distcheck", *sys.argv[3:]], env=os.environ | numbers))
raise SystemExit(max(rank.wait() for rank in ranks))
"""
"""A program of the name torchrun that starts ranks with its variables, and need not import torch."""


def test_a_rank_whose_agent_was_killed_ends_and_never_joins_the_next_attempt(start, port, tmp_path):
    program = tmp_path / "torchrun"
    program.write_text(AGENT)
    output = tmp_path / "report.txt"
    agent = start("1", str(port), "env", "--output", str(output), program=[sys.executable, str(program)])
    (rank,) = wait_for(lambda: psutil.Process(agent.process.pid).children())
    # It listens: it waits for rank 1, which never comes.
    wait_for(lambda: [c for c in rank.net_connections("tcp") if c.status == psutil.CONN_LISTEN])
    killed = time.monotonic()
    agent.interrupt(signal.SIGKILL)
    wait_for(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE, 10)
    assert time.monotonic() - killed < 5, "--join-timeout is 20 s"
    assert "the run was ended by the end of its torchrun agent" in output.read_text()
    again = start("2", str(port), "env", "--format", "json", program=[sys.executable, str(program)]).wait()
    assert again.code == 0, again
    assert [row["status"] for row in again.report["ranks"]] == ["ok", "ok"]


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return answer
