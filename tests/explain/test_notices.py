"""Notices of programs that go on: they lead only where the log has nothing else."""

from __future__ import annotations

import pytest
from explain.test_spellings import found

WITHOUT_NUMPY = "functional_tensor.py:276: UserWarning: Failed to initialize NumPy: No module named 'numpy'"
ENDINGS = [
    "KeyError: 'labels'",
    "E1127 10:00:00 elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 2 (pid: 99)",
    "[rank2]: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
    "Connection closed by peer [10.0.0.2]:41",
]
"""What ends a job: a mistake, SIGKILL, a collective that timed out, and a rank's connection to one that ended."""


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "notice",
    [
        WITHOUT_NUMPY,
        "xFormers not available: No module named 'xformers'",
        "flash_attn is not installed: ModuleNotFoundError: No module named 'flash_attn'",
        "INFO 07-01 10:00:00 ImportError: No module named apex",
        "WARNING:root:ModuleNotFoundError: No module named 'tensorboard'",
        "mpirun detected: UserWarning: No module named 'numpy'",
    ],
)
def test_a_module_that_a_program_does_without_is_no_cause_of_what_ends_it_later(notice, ending):
    answer = found(f"{notice}\nstep 1\n{ending}\n")
    assert (answer.telling.line, answer.causes) == (3, ())


@pytest.mark.parametrize(
    "error",
    [
        "[rank1]: ModuleNotFoundError: No module named 'einops'",
        "ModuleNotFoundError: No module named 'warnings_of_mine'",
        "ImportError: No module named yaml",
        "/usr/bin/python3.11: No module named mytrainer",
        "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
    ],
)
def test_a_module_that_python_itself_misses_is_the_cause_before_what_other_ranks_report(error):
    answer = found(f"{WITHOUT_NUMPY}\n{error}\n{ENDINGS[2]}\n{ENDINGS[3]}\n")
    assert (answer.telling.line, answer.about) == (2, "start-up")


def test_a_module_that_a_program_does_without_is_told_where_the_log_has_nothing_else():
    assert found(f"{WITHOUT_NUMPY}\n").telling.says == "A Python module is missing in the job's environment."
