"""What the lines around a message decide, and which node, rank and file it names."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(("own", "rule"), [("172.16.89.194", "net-hostname-wrong-nic"), ("10.1.3.4", None)])
def test_a_ray_node_with_an_address_of_another_private_network_than_the_head(own, rule):
    log = f"LEADER_IP=10.1.227.0\nLocal node IP: {own}\nException: The current node timed out during startup\n"
    assert rules(log)[:1] == ([rule] if rule else [])


@pytest.mark.parametrize("words", ["exit code", "exitcode: ", "return code = ", "with code ", "Exit Code:    "])
@pytest.mark.parametrize(
    ("codes", "about", "named"),
    [
        ((-9, 137), "process killed", []),
        ((-7, 135), "start-up", ["host-shm-too-small"]),
        ((-11, 139), "application", []),
        ((-15, 143), "process killed", []),
        ((126, 127), "start-up", None),
    ],
)
def test_an_exit_code_has_the_meaning_of_its_signal(words, codes, about, named):
    for code in codes:
        answered = found(f"{HEALTHY}worker ended, {words} {code}\n")
        assert answered.about == about
        assert named is None or rules_of(answered) == named


@pytest.mark.parametrize(
    "line", ["exit code 1379", "with code 9.2", "ticket 137", "status code: 139 bytes", "exit code 0"]
)
def test_other_numbers_are_no_signals(line):
    assert found(f"{HEALTHY}{line}\n").about is None


def test_distcheck_that_torchrun_took_for_a_python_file_is_named_with_the_option_to_add():
    line = "/usr/bin/python: can't open file '/home/me/distcheck': [Errno 2] No such file or directory"
    answered = found(f"{HEALTHY}{line}\n")
    assert answered.about == "start-up"
    assert "--no-python before distcheck" in answered.telling.says


def test_a_file_that_serves_as_rendezvous_is_told_from_other_files():
    assert rules("RuntimeError: flock: Function not implemented\n")[0] == "net-file-rendezvous-nfs"
    assert rules("RuntimeError: open(/nfs/x): No such file or directory\n")[0] == "net-file-rendezvous-nfs"
    assert "net-file-rendezvous-nfs" not in rules("FileNotFoundError: [Errno 2] No such file or directory: '/nfs/x'\n")
    assert rules("dist.init_process_group('nccl', init_method='file:///nfs/x')\nOSError: No locks available\n")[0] == (
        "net-file-rendezvous-nfs"
    )


@pytest.mark.parametrize(
    "waited",
    [
        "Timed out initializing process group in store based barrier (world_size=4, worker_count=3, timeout=0:30:00)",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
        "[c10d] The client socket has timed out after 600s while trying to connect to (n1, 29500).",
    ],
)
def test_a_mistake_in_the_script_of_one_rank_is_told_from_the_others_that_wait_for_it(waited):
    mistake = "Traceback (most recent call last):\n  File \"train.py\", line 3, in build\nKeyError: 'hidden_size'\n"
    answered = found(f"{mistake}{waited}\n")
    assert (rules_of(answered), answered.about) == ([], "application")
    assert answered.telling.text == "KeyError: 'hidden_size'"
    assert rules(f"{waited}\n{mistake}") == rules(f"{waited}\n") != []
    assert rules(f"{mistake}RuntimeError: CUDA error: invalid device ordinal\n") != []


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


def test_a_line_with_the_form_of_a_failure_leads_only_where_nothing_else_does():
    guess = "the connection failed\n"
    assert found(guess).about == "network"
    assert found(guess + "Exits: srun: error: n1: task 3: Exited with exit code 1\n").telling.line == 2
    assert rules("the probe failed\ndevices used by this process are currently unknown\n") == ["gpu-barrier-guess"]


def test_a_traceback_leads_only_where_nothing_else_does():
    text = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'RANK'\n"
    assert rules(text)[0] == "env-rank-unset"
    assert found("0 ERROR\n" + text).telling.line == 4


def test_a_refused_connection_of_the_script_s_own_names_no_rule():
    trace = 'Traceback (most recent call last):\n  File "{}", line 3, in f\nConnectionRefusedError: [Errno 111] x\n'
    answered = found(trace.format("upload.py"))
    assert not rules_of(answered)
    assert answered.about == "application"
    assert rules(trace.format("torch/distributed/rendezvous.py"))[0] == "net-master-refused"
    assert rules("ConnectionRefusedError: [Errno 111] x")[0] == "net-master-refused"
