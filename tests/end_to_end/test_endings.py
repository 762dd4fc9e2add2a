"""Unhappy endings: stopped and killed ranks, interrupts, deadlines; named, bounded, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import psutil
import pytest
from forms.sampled import sampled
from real.ended import STARTING_SECONDS
from real.spoiling import planted, spoiled
from real.waiting import until

LONG = ["--sizes", "16M:16M", "--iters", "400"]
SECOND_SIZE_NEVER_ENDS = """
    if tensor.numel() == {elements}:
        open("{folder}/begun", "a").close()
        time.sleep(600)
"""


def test_a_rank_stopped_in_the_bandwidth_test_is_named_and_no_other(start):
    run = start("bandwidth", "--nproc", "4", "--timeout", "30", "--format", "json", *LONG)
    ranks = run.ranks(4)
    time.sleep(1)
    os.kill(ranks[2].pid, signal.SIGSTOP)
    ended = run.wait()
    assert ended.code == 20
    assert ended.seconds < 35 + STARTING_SECONDS
    errors = [f for f in ended.report["findings"] if f["severity"] == "error"]
    assert [(f["rule"], f["ranks"]) for f in errors] == [("collective-rank-stopped", [2])]


@pytest.mark.parametrize(
    ("signum", "code"),
    sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], (signal.SIGINT, 130)),
)
def test_an_interrupt_gives_a_partial_report_with_what_was_measured(start, tmp_path, signum, code):
    env = spoiled(tmp_path, (0, 1), SECOND_SIZE_NEVER_ENDS, elements=(16 << 20) // 4)
    sizes = ("--sizes", "64K:16M:x256", "--iters", "3")
    run = start("bandwidth", "--nproc", "2", "--format", "json", *sizes, env=env)
    until((tmp_path / "begun").exists, 60)
    run.interrupt(signum)
    ended = run.wait()
    assert ended.code == code
    assert (ended.report["verdict"], ended.report["exit_code"], ended.report["findings"]) == ("unknown", code, [])
    said = rf"INTERRUPTED: {signum.name} in the collectives after [\d.]+ s; nothing was judged. exit code {code}"
    assert re.fullmatch(said, ended.report["headline"])
    assert [row["bytes"] for row in ended.report["bandwidth"]] == [65536]
    assert any(signum.name in n["reason"] for n in ended.report["not_checked"])


def test_an_interrupt_while_waiting_for_ranks_keeps_the_present_ones(by_hand):
    (first,) = by_hand("env", [0], 3, "--format", "json")
    until(psutil.Process(first.process.pid).net_connections)
    first.interrupt(signal.SIGTERM)
    ended = first.wait()
    assert ended.code == ended.report["exit_code"] == 143
    assert " in the roll call after " in ended.report["headline"]
    assert ended.report["headline"].endswith(" s, without ranks 1-2; nothing was judged. exit code 143")
    assert [r["rank"] for r in ended.report["ranks"] if r["status"] != "missing"] == [0]


@pytest.mark.parametrize("signums", [(signal.SIGTERM, signal.SIGKILL), (signal.SIGKILL,)], ids=["scheduler", "killed"])
def test_a_run_that_is_killed_leaves_a_report_or_nothing_and_no_process(start, signums):
    run = start("bandwidth", "--nproc", "2", "--format", "json", *LONG)
    run.ranks(2)
    time.sleep(1)
    for signum in signums:
        run.interrupt(signum)
        time.sleep(0.05)
    assert run.wait().code in {-signal.SIGKILL, 143}


def test_signals_that_the_starting_shell_ignores_are_ignored(start):
    # As nohup does; whoever ignores SIGHUP wants the run to go on without the terminal.
    nohup = ["sh", "-c", 'trap "" HUP; exec "$0" "$@"', sys.executable, "-m", "distcheck"]
    run = start("bandwidth", "--nproc", "2", "--format", "json", "--sizes", "1M:1M", program=nohup)
    run.ranks(2)
    run.interrupt(signal.SIGHUP)
    assert run.wait().code == 0


def test_a_failed_import_of_torch_shows_its_error(distcheck, tmp_path):
    torch = "raise ImportError('libcudart.so.13: cannot open shared object file')\n"
    env = planted(tmp_path, torch, "torch/__init__.py")
    ended = distcheck("gate", "--nproc", "2", "--format", "json", env=env)
    assert ended.code == 20
    assert "libcudart.so.13" in ended.out
    assert ended.seconds < 10 + STARTING_SECONDS


def test_a_closed_pipe_is_reported_in_one_line(start):
    reader, writer = os.pipe()
    os.close(reader)
    run = start("env", "--nproc", "1", stdout=writer)
    os.close(writer)
    _, err = run.process.communicate(timeout=30)
    assert run.process.returncode == 70
    assert len(err.splitlines()) == 1
    assert "Broken pipe" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("closed", ["2>&- <&-", "<&-", "2>&-"])
def test_a_gate_with_closed_standard_streams_is_healthy(start, closed):
    gate = f'exec "{sys.executable}" -m distcheck gate --nproc 2 --sizes 64K:64K --format json {closed}'
    ended = start(gate, program=["sh", "-c"]).wait()
    assert (ended.code, ended.rules) == (0, []), ended


def test_a_command_runs_after_a_pass_whose_output_nobody_reads(start, tmp_path):
    gate = f'exec "{sys.executable}" -m distcheck gate --nproc 2 --sizes 64K:64K -- touch "{tmp_path}/ran" >&-'
    ended = start(gate, program=["sh", "-c"]).wait()
    assert (ended.code, (tmp_path / "ran").exists()) == (0, True), ended
