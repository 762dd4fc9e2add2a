"""Slurm's time limit where its lines are in another file than those of the ranks: --output of srun, --error of sbatch.

The texts are those of real jobs of Slurm 22.05 on two nodes.
"""

from __future__ import annotations

import pytest
from explain.answered import found_in, rules_of

from distcheck.explain.answer import explained

FAULT = "1: Traceback (most recent call last):\n1:   File \"train.py\", line 3, in <module>\n1: KeyError: 'lr'\n"
STEP = "0: slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-28T13:52:15 DUE TO TIME LIMIT ***\n"
JOB = "slurmstepd-node1: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-28T13:52:15 DUE TO TIME LIMIT ***\n"
FAILED = "srun: error: node2: task 1: Exited with exit code 1\n"
TERMINATED = "srun: error: node1: task 0: Terminated\n"
_ELASTIC = "torch/distributed/elastic"
ENDED = f"""\
W1128 13:52:15.306000 118 {_ELASTIC}/agent/server/api.py:753] Received 15 death signal, shutting down workers
W1128 13:52:15.307000 118 {_ELASTIC}/multiprocessing/api.py:1028] Sending process 201 closing signal SIGTERM
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.api.SignalException: Process 118 got signal: 15
"""
LIMIT = "The job reached its time limit."


def logs(ranks, slurm):
    return [("train.log", ranks), ("job.err", slurm)]


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("slurm", [JOB, JOB + FAILED, JOB + TERMINATED])
def test_the_ranks_that_slurm_ended_are_no_cause_in_whichever_order_the_logs_are_given(slurm, turn):
    answer = found_in(logs(ENDED, slurm)[::turn])
    assert (rules_of(answer), answer.about) == ([], "process killed")
    assert answer.telling.says.startswith(LIMIT)
    assert answer.next == ("sacct -j 12 --format=JobID,State,ExitCode,Elapsed,Timelimit",)


def test_of_a_folder_with_both_logs_the_limit_is_the_cause(tmp_path):
    for name, text in logs(ENDED, JOB):
        (tmp_path / name).write_text(text)
    assert explained([tmp_path]).telling.says.startswith(LIMIT)


def test_of_the_ranks_log_alone_the_job_was_ended_from_outside_and_the_other_logs_are_wanted():
    answer = found_in(logs(ENDED, JOB)[:1])
    assert answer.telling.says == "The job was ended from outside (SIGTERM): by its scheduler, or by a user."
    assert answer.next[0].startswith("distcheck explain --log LOGS")


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("ranks", [FAULT, FAULT + STEP, "0: task 0 starts\n" + FAULT + STEP])
def test_a_task_that_failed_in_another_log_than_slurms_is_the_cause_and_not_the_limit_of_the_wait(ranks, turn):
    answer = found_in(logs(ranks, FAILED + JOB + TERMINATED)[::turn])
    assert (answer.telling.text, answer.telling.rank, answer.about) == ("1: KeyError: 'lr'", 1, "application")


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    ("ranks", "slurm"),
    [
        (FAULT, JOB + FAILED),
        (ENDED, FAILED + JOB),
        (STEP + ENDED, FAILED + JOB),
        ("2026-11-28 13:52:20 [rank1]: KeyError: 'lr'\n", FAILED + JOB),
    ],
)
def test_a_time_limit_is_the_cause_where_no_error_of_a_rank_came_before(ranks, slurm, turn):
    assert found_in(logs(ranks, slurm)[::turn]).telling.says.startswith(LIMIT)
