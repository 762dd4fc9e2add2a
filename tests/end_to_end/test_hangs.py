"""Calls that never return: the run ends within --timeout and 5 s more, and names who hung where."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from forms.sampled import sampled
from real.ended import BEYOND_BY_ITS_CLOCK_SECONDS, BEYOND_SECONDS, STARTING_SECONDS
from real.spoiling import DIE, FREEZE, HOLD, PRINT, UNINTERRUPTIBLE, planted, spoiled

SMALL = ["--sizes", "1M:1M", "--op", "all_reduce"]
SEGMENT = """
    with open(f"/dev/shm/distcheck-test-{os.getpid()}", "wb+") as file, open("{folder}/made", "a") as made:
        os.ftruncate(file.fileno(), 4096)
        whole = mmap.mmap(file.fileno(), 4096)
        made.write(file.name + "\\n")
{then}
"""
LONG = ["--sizes", "16M:16M", "--op", "all_reduce", "--iters", "4000"]


@pytest.mark.parametrize(
    ("body", "sign", "told"),
    # A run beside the second one sees a stuck process on its node, and says so.
    sampled(
        {
            "keeps the interpreter": (HOLD, "stopped reporting", "calls: fault"),
            "uninterruptible": (UNINTERRUPTIBLE, "hung in an uninterruptible system call", "state D"),
        },
        "keeps the interpreter",
    ),
)
def test_a_rank_that_hangs_is_named_with_where_it_hangs(distcheck, tmp_path, body, sign, told):
    env = spoiled(tmp_path, (2,), body)
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "24", "--format", "json", *SMALL, env=env)
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-stalled", [2]), ended
    assert sign in found["message"]
    assert told in found["evidence"]["rank 2"]
    assert ended.seconds < 24 + BEYOND_SECONDS


@pytest.mark.slow
def test_a_rank_that_prints_for_ever_neither_fills_the_disk_nor_outlives_the_timeout(start, tmp_path):
    env = spoiled(tmp_path, (1,), PRINT)
    # Whoever makes a file of more than 10 MiB is killed by SIGXFSZ.
    bounded = ["sh", "-c", 'ulimit -f 20480; exec "$0" "$@"', sys.executable, "-m", "distcheck"]
    words = ("bandwidth", "--nproc", "2", "--timeout", "20", "--format", "json", *SMALL)
    ended = start(*words, env=env, program=bounded).wait()
    # It says that it is alive, as does the one that waits for it; nobody is blamed, and each place is said.
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-stalled", []), ended
    assert any(key.startswith("at fault (") and who == "rank 1" for key, who in found["evidence"].items())
    assert ended.seconds < 20 + BEYOND_SECONDS


def test_shared_memory_of_ranks_that_are_killed_is_removed(distcheck, tmp_path):
    # As NCCL's segments, which keep their names until their ranks leave.
    env = spoiled(tmp_path, (0, 1), SEGMENT, then=HOLD)
    ended = distcheck("bandwidth", "--nproc", "2", "--timeout", "20", "--format", "json", *SMALL, env=env)
    assert ended.code == 20
    made = (tmp_path / "made").read_text().splitlines()
    assert len(made) == 2
    assert not [name for name in made if Path(name).exists()]


def test_an_import_of_torch_past_the_deadline_shows_its_stack(distcheck, tmp_path):
    torch = "import time\ndef load():\n    time.sleep(600)\nload()\n"
    ended = distcheck("gate", "--nproc", "2", "--timeout", "8", env=planted(tmp_path, torch, "torch/__init__.py"))
    assert ended.code == 20, ended
    assert re.match(
        r"UNKNOWN: --timeout 8 left [\d.]+ s to import torch, which took longer; use --timeout 60\.", ended.out
    )
    assert re.search(r"the import is in load\s+\(torch/__init__.py:3\)", ended.out)
    assert ended.seconds < 8 + BEYOND_SECONDS


def test_what_keeps_the_interpreter_of_distcheck_itself_is_ended_by_the_kernel(start, tmp_path):
    hook = "socket.getaddrinfo = lambda *_, **__: [ctypes.PyDLL(None).sleep(99) for _ in range(9)]"
    env = planted(tmp_path, f"import ctypes, socket\n{hook}\n")
    run = start("env", "--nproc", "2", "--timeout", "3", env=env)
    # Without the kernel it would sleep for 99 s; its --timeout begins when Python has started, late on a busy machine.
    assert run.process.wait(timeout=3 + 3 * BEYOND_SECONDS) == -signal.SIGALRM


def test_a_follower_whose_rules_load_slowly_still_reports_the_lost_leader_in_time(by_hand, tmp_path):
    slow = (
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(name, *_):\n"
        "        time.sleep(6 * (name == 'distcheck.rules.host.probe'))\n"
        "sys.meta_path.insert(0, Slow)\n"
    )
    words = (2, "--timeout", "30", "--format", "json", *LONG)
    (leader,) = by_hand("bandwidth", [0], *words)
    (follower,) = by_hand("bandwidth", [1], *words, env=planted(tmp_path, slow))
    follower.ranks(1)
    leader.interrupt(signal.SIGSTOP)
    ended = follower.wait()
    leader.process.kill()
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "probe-process-lost", [0]), ended
    assert ended.report["seconds"] < 30 + BEYOND_BY_ITS_CLOCK_SECONDS


def test_a_leader_that_was_frozen_for_a_while_in_the_roll_call_is_healthy(by_hand, port):
    """Longer than a follower waits for an answer at MASTER_PORT: no other program listens there."""
    (leader,) = by_hand("net", [0], 2)
    process = psutil.Process(leader.process.pid)
    while port not in {c.laddr.port for c in process.net_connections() if c.status == psutil.CONN_LISTEN}:
        assert leader.process.poll() is None
        time.sleep(0.05)
    leader.interrupt(signal.SIGSTOP)
    (follower,) = by_hand("net", [1], 2)
    follower.begun()
    time.sleep(4)
    leader.interrupt(signal.SIGCONT)
    assert [run.wait().code for run in (leader, follower)] == [0, 0]


@pytest.mark.parametrize("signum", sampled([signal.SIGKILL, signal.SIGSTOP], signal.SIGSTOP))
def test_a_leader_lost_in_the_collectives_is_reported_by_all_others_alike(by_hand, signum):
    runs = by_hand("bandwidth", [0, 1, 2], 3, "--timeout", "40", "--format", "json", *LONG)
    for run in runs:
        run.ranks(1)
    time.sleep(1)
    runs[0].interrupt(signum)
    ended = [runs[1].wait(80), runs[2].wait(40)]
    runs[0].process.kill()
    runs[0].process.communicate()
    for rank, end in enumerate(ended, start=1):
        found = end.error
        assert (end.code, found["rule"], found["ranks"]) == (20, "probe-process-lost", [0]), end
        assert f"rank 0's process was lost in stage 'collectives', reported by rank {rank}" in found["message"]
        assert end.report["seconds"] < 40 + BEYOND_BY_ITS_CLOCK_SECONDS
        (own,) = [r for r in end.report["ranks"] if r["rank"] == rank]
        assert own["stage"] == "collectives"


@pytest.mark.parametrize(
    "body", sampled({"keeps the interpreter": HOLD, "is stopped": FREEZE, "dies": DIE}, "keeps the interpreter")
)
def test_a_rank_that_delivered_everything_and_cannot_leave_is_not_a_fault(distcheck, tmp_path, body):
    env = spoiled(tmp_path, (1,), f"    open('{tmp_path}/left', 'w').close()\n{body}", leaving=True)
    ended = distcheck("gate", "--nproc", "3", "--timeout", "40", "--format", "json", *SMALL, env=env)
    assert (ended.code, ended.report["verdict"], ended.report["findings"]) == (0, "pass", []), ended
    assert len(ended.report["bandwidth"]) == 1
    assert ended.seconds < 20 + STARTING_SECONDS
    assert (tmp_path / "left").exists(), "the fault was not reached"
