"""`distcheck hang` beside a job that runs on this machine: its answer, and that it leaves the job alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real.waiting import until

pytestmark = pytest.mark.process

STEPPING = Path(__file__).parents[1] / "real" / "stepping.py"


@contextlib.contextmanager
def running(folder, port, *words):
    """Run two ranks by hand."""
    folder.mkdir()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, STEPPING, folder, *words], env={**os.environ, **shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        until(lambda: len(list(folder.iterdir())) == 2 or any(rank.poll() is not None for rank in ranks), 120)
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_the_rank_that_holds_up_the_other_is_named_and_report_says_it_again(distcheck, port, tmp_path):
    saved = tmp_path / "hang.json"
    with running(tmp_path / "steps", port, "1") as ranks:
        ended = distcheck("hang", "--pid", str(ranks[0].pid), "--save", str(saved))
        assert [rank.poll() for rank in ranks] == [None, None]
    first = ended.out.splitlines()[0]
    assert ended.code == 30, ended
    assert first.startswith("HUNG: rank 1 on "), first
    assert f"(process {ranks[1].pid}) holds up 1 rank: sleeps at stepping.py:" in first
    again = distcheck("report", str(saved))
    assert (again.code, again.out.splitlines()[0]) == (30, first)


def test_a_job_that_takes_steps_goes_on_and_is_not_hung(distcheck, port, tmp_path):
    with running(tmp_path / "steps", port) as ranks:
        ended = distcheck("hang", "--pid", str(ranks[1].pid), "--wait", "1")
        assert [rank.poll() for rank in ranks] == [None, None]
    assert (ended.code, ended.out.splitlines()[0].partition(":")[0]) == (0, "NOT HUNG"), ended


def test_a_process_that_is_none_is_a_usage_error(distcheck):
    for words, said in (
        (("--pid", "0"), "there is no such process"),
        (("--pid", "x"), "give the number of a process"),
        (("--job", "7", "--hosts", "a"), "--hosts and --job: give only one"),
        (("--wait", "90"), "raise --timeout"),
        (("-n", "ml"), "--namespace: give --pods too"),
    ):
        ended = distcheck("hang", *words)
        assert (ended.code, said in ended.err) == (2, True), ended


def test_ctrl_c_ends_the_look_and_shows_what_was_seen(start):
    run = start("hang", "--pid", str(os.getpid()), "--wait", "50", "--no-stacks")
    until(lambda: "poll" in Path(f"/proc/{run.process.pid}/wchan").read_text())
    run.interrupt(signal.SIGINT)
    ended = run.wait()
    assert (ended.code, ended.err) == (130, ""), ended
    assert ended.out.startswith("INTERRUPTED: SIGINT in the look at the ranks after "), ended
    assert f" {os.getpid()} " in ended.out
    assert ended.seconds < 30
