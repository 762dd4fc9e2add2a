"""SIGABRT without a message: the rank that called abort() leads, and a cause that the log has stays the cause.

The reports are of real jobs, with torch 2.13, Slurm 22.05, Open MPI 4.1, bash 5.2 and Python 3.11.
"""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules_of

ABORT = "A process called abort() (SIGABRT), and no line of the log says why."
FAULTHANDLER = "PYTHONFAULTHANDLER=1 COMMAND"
LOST = (
    "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:21891: Connection reset by peer.\n"
)
_API = "torch/distributed/elastic/multiprocessing/api.py"
REPORT = f"""\
W1128 13:37:42.298000 5018 {_API}:1028] Sending process 5730 closing signal SIGTERM
E1128 13:37:42.669000 5018 {_API}:1002] failed (exitcode: -6) local_rank: 1 (pid: 5731) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-28_13:37:42
  host      : node2
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 5730)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 5730
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_13:37:42
  host      : node2
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 5731)  (SIGABRT)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 5731
============================================================
"""
MPIRUN = (
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n"
    "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 6 (Aborted).\n"
)
FRAMES = """\
Fatal Python error: Aborted

Current thread 0x00007f36ca48fb80 (most recent call first):
  File "train.py", line 4 in <module>
"""
TIMED_OUT = (
    "[rank1]:[E1128 13:37:41.100000000 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600001 milliseconds\n"
)


@pytest.mark.parametrize(
    ("lines", "rank", "node"),
    [
        (REPORT, 1, "node2"),
        (LOST + REPORT, 1, "node2"),
        ("srun: error: node2: task 1: Aborted\n", 1, "node2"),
        ("srun: error: node2: task 1: Aborted (core dumped)\n", 1, "node2"),
        (f"{LOST}srun: error: node2: task 1: Aborted (core dumped)\n", 1, "node2"),
        (
            MPIRUN,
            1,
            "vm",
        ),
        ("bash: line 1:  6602 Aborted                 python3 train.py\n", None, None),
        ("subprocess.CalledProcessError: Command '['./a.out']' died with <Signals.SIGABRT: 6>.\n", None, None),
        ("Aborted\n", None, None),
        ("Process exited with exit code 134\n", None, None),
        ("[node1:12345] Signal: Aborted (6)\n", None, "node1"),
    ],
)
def test_a_rank_that_called_abort_and_wrote_nothing_leads_with_what_shows_its_stack(lines, rank, node):
    answer = found(HEALTHY + lines)
    assert (rules_of(answer), answer.about) == ([], "application")
    assert answer.telling.says.startswith(ABORT)
    assert (answer.telling.rank, answer.telling.node) == (rank, node)
    assert answer.next[0].startswith(FAULTHANDLER)


def test_the_stack_of_faulthandler_is_the_answer_and_of_the_rank_that_torchrun_names():
    answer = found(FRAMES + LOST + REPORT)
    assert (answer.telling.text, answer.telling.rank) == ("Fatal Python error: Aborted", 1)
    assert answer.next[0].startswith("grep -rn -A 30 'Fatal Python error' LOGS")


def test_stacks_of_several_processes_are_of_no_rank():
    answer = found(FRAMES + FRAMES + LOST + REPORT)
    assert answer.telling.text.startswith("exitcode  : -6")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (TIMED_OUT, "Watchdog caught collective operation timeout"),
        (TIMED_OUT + FRAMES, "Watchdog caught collective operation timeout"),
        ("[rank1]: KeyError: 'lr'\n", "KeyError"),
    ],
)
def test_the_reason_of_an_abort_that_the_log_has_stays_the_answer(lines, text):
    assert text in found(lines + REPORT).telling.text


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]:[E1128 13:37:41.1 ProcessGroupNCCL.cpp:616] [Rank 1] Process group watchdog thread terminated\n",
        "terminate called after throwing an instance of 'c10::Error'\n",
    ],
)
def test_an_abort_after_torchs_own_error_is_not_said_to_have_no_reason(line):
    assert not found(line + REPORT).telling.says.startswith(ABORT)


def test_an_abort_of_another_rank_than_the_first_that_failed_does_not_lead():
    other = REPORT.replace("exitcode  : -15 (pid: 5730)  (SIGTERM)", "exitcode  : -6 (pid: 5730)  (SIGABRT)")
    other = other.replace("exitcode  : -6 (pid: 5731)  (SIGABRT)", "exitcode  : 1 (pid: 5731)")
    assert found(other.replace("(exitcode: -6)", "(exitcode: 1)")).telling.text.startswith("Root Cause")


def test_a_crash_without_a_reason_has_the_command_that_shows_its_stack():
    assert found("srun: error: node2: task 1: Segmentation fault\n").next[0].startswith(FAULTHANDLER)
