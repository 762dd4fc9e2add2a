"""Each rule of a running job: its message, its place and the exit code, and silence where another one applies."""

from __future__ import annotations

import pytest
from made.running import PYTHON, blocked, busy, job_of, rank, running, sleeper, spinning, thread, unreadable, waiter
from msgspec.structs import replace

from distcheck.facts.hang import HangNode, Helper, SystemCall, Unanswered
from distcheck.rules.hang.rights import allow

OURS = ("hang.program", "hang.machine")
WAITERS = (waiter(0), waiter(1), waiter(3))
OPEN = SystemCall("openat", "/mnt/data/shard-17.bin")
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1 _try_get_data"
LIB = "/usr/lib/python3.11"
LOCK = SystemCall("futex", libraries=PYTHON)
POOL = (f"{LIB}/threading.py:320 Condition.wait", f"{LIB}/multiprocessing/pool.py:367 Pool.map", "/home/me/a.py:5 f")
FORKED = (f"{LIB}/multiprocessing/process.py:108 Process.run", "/home/me/a.py:4 f")
IDLE = Helper(98, "python", "S", threads=(thread(f"{LIB}/multiprocessing/pool.py:114 worker", *FORKED),))
TASK = Helper(99, "python", "S", threads=(thread("/home/me/a.py:2 tokenize", *FORKED),))
CUT = Unanswered("10.0.0.1:4000", "10.0.0.2:5000", 4, 1000)

CASES = {
    "hang-rank-elsewhere": (
        [*WAITERS, sleeper(2)],
        30,
        (2,),
        ("node1",),
        "rank 2 on node1 (process 4702) holds up 3 ranks: sleeps at data.py:41 in load_shard, for at least 2 s",
    ),
    "hang-rank-missing": (
        [*WAITERS],
        30,
        (2,),
        (),
        "rank 2 has no process; ranks 0-1,3 wait in all_reduce at train.py:88, for at least 2 s",
    ),
    "hang-collective-mismatch": (
        [*WAITERS, waiter(2, "barrier", "/home/me/train.py:92 step")],
        30,
        (2,),
        ("node1",),
        "rank 2 waits in barrier at train.py:92, while ranks 0-1,3 wait in all_reduce at train.py:88; unchanged for at",
    ),
    "hang-collective-stuck": (
        [waiter(n) for n in range(4)],
        20,
        (),
        (),
        "all 4 ranks: ranks 0-3 wait in all_reduce at train.py:88",
    ),
    "hang-rank-slow": (
        [*WAITERS, busy(2)],
        0,
        (2,),
        ("node1",),
        "rank 2 on node1 (process 4702) holds up 3 ranks: computes at eval.py:7 in evaluate, CPU 90 %",
    ),
    "hang-uninterruptible": (
        [*WAITERS, blocked(2, OPEN, state="D", waits_in="nfs4_wait_bit_killable")],
        40,
        (2,),
        ("node1",),
        'waits in D state at data.py:41 in load_shard, open("/mnt/data/shard-17.bin"), kernel nfs4_wait_bit_killable',
    ),
    "hang-gpu-failed": (
        [*(spinning(n, 100, 100) for n in (0, 1, 3)), spinning(2, gpu={"lost": "NVML error 15: a GPU is lost"})],
        40,
        (2,),
        ("node1",),
        "holds up 3 ranks: waits at train.py:91 in step, GPU 2: NVML error 15: a GPU is lost, for at least 2 s",
    ),
    "hang-stopped": (
        [*WAITERS, blocked(2, OPEN, state="T", waits_in="do_signal_stop")],
        20,
        (2,),
        ("node1",),
        "is stopped by a signal at data.py:41 in load_shard",
    ),
    "hang-no-packets": (
        [waiter(n, node=f"node{n // 2 + 1}", unanswered=(CUT,) if n in {0, 3} else ()) for n in range(4)],
        20,
        (0, 3),
        ("node1", "node2"),
        "no answer on 2 connections (rank 0 10.0.0.1:4000 to 10.0.0.2:5000",
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_each_fault_is_one_finding_with_its_exit_code(only, rule):
    ranks, code, where, nodes, words = CASES[rule]
    finding, exit_code = only(job_of(running(*ranks, world=4)))
    assert (finding.rule, exit_code, finding.ranks, finding.nodes) == (rule, code, where, nodes)
    assert words in finding.message


def test_a_node_that_does_not_answer_is_named_with_the_ranks_that_may_be_there(only):
    nodes = (HangNode("node1"), HangNode("node2", problem="ssh: connect to host node2 port 22: No route to host"))
    finding, code = only(job_of(running(*WAITERS, world=4, nodes=nodes)))
    assert (finding.rule, code, finding.ranks, finding.nodes) == ("hang-node-silent", 20, (2,), ("node2",))
    assert (
        "node2 does not answer (ssh: connect to host node2 port 22: No route to host), where rank 2 may run"
        in finding.message
    )


def test_a_job_that_works_has_no_finding(silent):
    assert silent(job_of(running(*(waiter(n, after={"switches": 9}) for n in range(4)))))


def test_what_cannot_be_told_is_unknown_and_says_what_to_allow(judge):
    node = HangNode("node1", yama=1, user="me")
    hang = replace(running(*(unreadable(waiter(n)) for n in range(4))), nodes=(node,))
    diagnosis = judge(job_of(hang), *OURS)
    assert (diagnosis.verdict.exit_code, diagnosis.findings) == (20, ())
    (gap,) = diagnosis.not_checked
    assert gap.rule == "hang-untold"
    assert "no stacks of 4 ranks (py-spy: Error: Permission Denied" in gap.reason
    assert "sysctl kernel.yama.ptrace_scope=0 (now 1), sudo distcheck hang" in gap.reason


@pytest.mark.parametrize(("odd", "code"), [(sleeper(2), 30), (busy(2), 0)])
def test_where_no_line_is_known_the_report_says_what_is_lacking_and_the_answer_stays(judge, odd, code):
    node = HangNode("node1", sampler="py-spy is not installed; pip install 'distcheck[hang]'")
    hang = replace(running(*map(unreadable, (*WAITERS, odd))), nodes=(node,))
    diagnosis = judge(job_of(hang), *OURS)
    (gap,) = diagnosis.not_checked
    assert (diagnosis.verdict.exit_code, gap.required, gap.ranks) == (code, False, (2,))
    assert gap.reason == "lines of the program: no stacks: py-spy is not installed; pip install 'distcheck[hang]'"


ALLOW = {
    "kubectl debug --profile=sysadmin": HangNode("n", container="kubernetes", user="root"),
    "--cap-add SYS_PTRACE": HangNode("n", container="docker", user="root"),
    "next start distcheck gate --arm": HangNode("n", yama=1, user="me"),
    "kernel.yama.ptrace_scope=0 (now 2)": HangNode("n", yama=2, user="me"),
    "sudo": HangNode("n", user="me"),
    "CAP_SYS_PTRACE for root": HangNode("n", user="root"),
    "as the job's own user": HangNode("n", user="root", sys_ptrace=True),
}


@pytest.mark.parametrize("words", ALLOW)
def test_what_to_allow_depends_on_where_it_runs(words):
    assert any(words in each for each in allow(ALLOW[words]))


FIXES = {
    "standard input": (
        blocked(2, SystemCall("read", "pipe:[7] (standard input)")),
        "Remove the read of standard input at data.py:41",
    ),
    "debugger": (
        rank(2, "/usr/lib/python3.11/pdb.py:1 interaction", "/home/me/train.py:5 f"),
        "Remove the breakpoint at train.py:5",
    ),
    "data loader": (
        rank(
            2,
            LOADER,
            "/home/me/train.py:5 f",
            waits_in="poll_schedule_timeout",
            helpers=(Helper(99, "python", "S", threads=sleeper(2).moments[0].threads),),
        ),
        "Look at process 99",
    ),
    "subprocess": (
        rank(2, f"{LIB}/subprocess.py:1 run", "/home/me/train.py:5 f", helpers=(Helper(99, "bash -c a; b", "S"),)),
        "Find out why process 99 does not end",
    ),
    "pool": (rank(2, *POOL, helpers=(IDLE, TASK)), "Find out why process 99 does not end"),
    "a lock of a file": (blocked(2, SystemCall("flock", "/mnt/a.lock")), "waits for: flock of /mnt/a.lock"),
    "a peer": (
        blocked(2, SystemCall("recvfrom", "a connection to 10.0.0.9:80", 80)),
        "why 10.0.0.9:80 does not answer, and give data.py:41 a timeout",
    ),
    "a debugger that listens": (
        blocked(2, SystemCall("accept4", "a socket at 127.0.0.1:5678")),
        "Connect to a socket at 127.0.0.1:5678, or remove the wait for a connection at data.py:41",
    ),
    "an event loop": (
        rank(2, f"{LIB}/asyncio/base_events.py:1 BaseEventLoop._run_once", "/home/me/a.py:5 f"),
        "what the coroutines of a.py:5 await",
    ),
    "queue": (
        rank(2, f"{LIB}/queue.py:171 Queue.get", "/home/me/a.py:5 f", call=LOCK),
        "the wait in Queue.get at a.py:5",
    ),
    "a library": (
        rank(2, "/venv/lib/python3.11/site-packages/s3fs/__init__.py:1 get", "/home/me/a.py:5 f", call=LOCK),
        "the wait in s3fs.get at a.py:5",
    ),
    "lock": (rank(2, "/home/me/a.py:5 f", call=LOCK), "Find the thread that holds the lock at a.py:5"),
}


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_is_about_what_the_rank_waits_for(only, name):
    odd, words = FIXES[name]
    finding, _ = only(job_of(running(*WAITERS, odd)))
    assert words in finding.fix.text


def test_a_rank_in_a_lock_shows_where_the_other_threads_of_the_program_are(only):
    other = thread(f"{LIB}/queue.py:171 Queue.get", "/home/me/a.py:9 fetch", main=False, name="pool_0")
    odd = rank(
        2, f"{LIB}/concurrent/futures/_base.py:451 Future.result", "/home/me/a.py:5 f", call=LOCK, others=(other,)
    )
    finding, _ = only(job_of(running(*WAITERS, odd)))
    assert "waits in Future.result at a.py:5 in f" in finding.message
    assert finding.evidence["thread pool_0"] == "at a.py:9 in fetch"


def test_a_rank_that_is_started_twice_and_one_with_another_port_are_named(only):
    again = replace(waiter(1, "init_process_group"), pid=77)
    finding, _ = only(job_of(running(*(waiter(n, "init_process_group") for n in (0, 1, 3)), again, world=4)))
    assert "rank 2 has no process, and rank 1 has 2 (4701, 77); ranks" in finding.message
    meets = [waiter(n, "init_process_group", meets=f"127.0.0.1:{29500 + (n == 2)}") for n in range(4)]
    finding, _ = only(job_of(running(*meets)))
    assert finding.ranks == (2,)
    assert "places: rank 2 at 127.0.0.1:29501 and ranks 0-1,3 at 127.0.0.1:29500; ranks 0-3 wait in" in finding.message


@pytest.mark.parametrize("odd", [waiter(2, "new_group"), waiter(2, "new_group", "/home/me/a.py:5 f")])
def test_a_group_that_some_ranks_do_not_make_is_made_by_all(only, odd):
    finding, _ = only(job_of(running(*(waiter(n, "new_group") for n in (0, 1, 3)), odd)))
    assert "Call new_group in every rank of the job" in finding.fix.text


def test_ranks_at_the_same_line_are_one_finding_and_others_another(judge):
    ranks = (waiter(0), sleeper(1), sleeper(2), blocked(3, OPEN, "/home/me/data.py:7 read"))
    found = judge(job_of(running(*ranks)), *OURS).findings
    assert [f.ranks for f in found] == [(3,), (1, 2)]
    assert found[1].message.startswith(
        "ranks 1-2 on node1 (processes 4701 and 4702) hold up 1 rank: sleep at data.py:41"
    )
