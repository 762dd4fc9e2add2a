"""What the lines around a message decide, and which node, rank and file it names."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


def test_memory_that_no_adapter_takes_is_locked_memory():
    assert rules("Couldn't allocate MR\nFailed to create MR\n")[0] == "ib-fork-or-memlock"


def test_distcheck_that_torchrun_took_for_a_python_file_is_named_with_the_option_to_add():
    line = "/usr/bin/python: can't open file '/home/me/distcheck': [Errno 2] No such file or directory"
    answered = found(f"{HEALTHY}{line}\n")
    assert answered.about == "start-up"
    assert "--no-python before distcheck" in answered.telling.says


CANCELLED = (
    "slurmstepd: error: *** STEP 12.0 ON node03 CANCELLED AT 2024-05-01T10:00:02 DUE TO NODE FAILURE, SEE SLURMCTLD LOG"
    " FOR DETAILS ***\n"
)


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("srun: error: Node failure on node05\n", "node05"),
        ("salloc: error: Node failure on node05\n", "node05"),
        ("srun: error: Node failure on node[05-06,09]\n", "node[05-06,09]"),
    ],
)
def test_the_node_that_slurm_lost_is_named_and_not_one_that_reports_it(line, node):
    for log in (line + CANCELLED, CANCELLED + line):
        answer = found(log)
        assert (answer.telling.node, answer.about, rules_of(answer)) == (node, "process killed", [])


def test_a_node_that_only_reports_a_lost_one_is_not_to_be_excluded():
    assert "Exclude" not in found(CANCELLED).telling.says
    assert found(CANCELLED).about == "process killed"


def test_of_a_step_that_ran_out_of_memory_the_task_and_its_node_are_named():
    event = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some step tasks have been OOM Killed.\n"
    task = "srun: error: node7: task 5: Out Of Memory\n"
    for log in (event + task, task + event):
        (cause, *_) = found(log).causes
        assert (cause.rule, cause.rank, cause.node) == ("host-memory-low", 5, "node7")
    assert rules(event)[0] == "host-memory-low"
