"""torchrun and similar launchers on this machine: agents on loopback, their options, and distcheck's report."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import pytest
from real.agents import QUICK_TORCHRUN, TORCHRUN
from real.spoiling import planted

LAUNCH = [sys.executable, "-m", "torch.distributed.launch"]
ENV = ["-m", "distcheck", "env", "--format", "json"]


@pytest.fixture
def agents(start):
    """Run agents side by side, each with arguments of its own; their exit codes, and the reports that were printed."""

    def run(program, *arguments, env=None):
        environ = {"OMP_NUM_THREADS": "1"} | (env or {})
        running = [start(*words, *ENV, program=program, env=environ) for words in arguments]
        ended = [r.wait(120) for r in running]
        lines = [line for e in ended for line in e.out.splitlines() if line.startswith('{"schema"')]
        return [e.code for e in ended], [json.loads(line) for line in lines], ended

    return run


def said(report, *severities):
    return [f["rule"] for f in report["findings"] if not severities or f["severity"] in severities]


def test_a_healthy_agent_alone_is_silent(agents):
    codes, (report,), ended = agents(TORCHRUN, ["--standalone", "--nproc-per-node=2"])
    assert (codes, said(report)) == ([0], []), ended
    assert [row["status"] for row in report["ranks"]] == ["ok"] * 2


def test_two_static_agents_on_loopback_are_one_healthy_job(agents, port):
    static = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    codes, (report,), ended = agents(QUICK_TORCHRUN, [*static, "--node-rank=0"], [*static, "--node-rank=1"])
    assert (codes, said(report)) == ([0, 0], []), ended
    assert [(row["rank"], row["local_rank"]) for row in report["ranks"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_two_c10d_agents_on_loopback_are_one_healthy_job(agents, port):
    c10d = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    codes, (report,), ended = agents(QUICK_TORCHRUN, [*c10d, "--rdzv-id=7"], [*c10d, "--rdzv-id=7"])
    assert (codes, said(report)) == ([0, 0], []), ended


def test_the_legacy_launcher_is_healthy_and_its_argument_is_taken(agents, port):
    where = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    codes, (report,), ended = agents(LAUNCH, [*where, "--nproc-per-node=2"])
    assert codes == [0], ended
    assert said(report) == ["launch-local-rank-arg"]
    assert [row["local_rank"] for row in report["ranks"]] == [0, 1]


@pytest.mark.parametrize("word", ["--local-rank=1", "--local_rank=1"])
def test_both_spellings_of_the_legacy_argument_are_taken_before_the_command(distcheck, word):
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    ended = distcheck(word, "env", "--alone", "--format", "json", env=env)
    assert (ended.code, [row["local_rank"] for row in ended.report["ranks"]]) == (0, [1]), ended


@pytest.mark.xfail(
    version("torch").startswith("2.3."),
    reason="torchrun of torch 2.3 closes its rendezvous on a restart (pytorch 123678)",
)
def test_a_restart_is_mentioned(agents):
    script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec $0 -m distcheck env --format json; exit 3"
    codes, (report,), ended = _restarted(agents, script)
    assert (codes, said(report)) == ([0], ["elastic-restart-stale"]), ended


def _restarted(agents, script):
    words = ["--standalone", "--nproc-per-node=1", "--max-restarts=1", "--monitor-interval=0.1", "--no-python"]
    return agents(QUICK_TORCHRUN, [*words, "bash", "-c", script, sys.executable])


def test_a_python_that_was_built_with_old_headers_is_healthy(start, tmp_path):
    env = planted(tmp_path, "import os, socket\ndel os.memfd_create, os.pidfd_open, socket.TCP_NOTSENT_LOWAT\n")
    gate = ["--standalone", "--nproc-per-node=2", "-m", "distcheck", "gate", "--sizes", "64K:64K", "--format", "json"]
    ended = start(*gate, program=TORCHRUN, env=env | {"OMP_NUM_THREADS": "1"}).wait()
    assert ended.code == 0, ended
    assert [row["status"] for row in ended.report["ranks"]] == ["ok", "ok"]
