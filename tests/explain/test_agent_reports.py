"""The report of torchrun's agent: the rank that failed first leads where no line says why it failed."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

CLOSED = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:41\n"
ENDED = "W1127 10:00:01.000000 77 elastic/multiprocessing/api.py:900] Sending process 100 closing signal SIGTERM\n"


def failure(number, rank, node, code, second):
    return (
        f"[{number}]:\n  time      : 2026-11-27_10:00:0{second}\n  host      : {node}\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 12)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
    )


def report(code, *, other_second=1):
    others = failure(1, 1, "node1", code, other_second)
    root = failure(0, 3, "node2", code, 1)
    return f"train.py FAILED\nFailures:\n{others}Root Cause (first observed failure):\n{root}"


OF_TORCH_1_9 = "Root Cause:\n[0]:\n  time: 2021-08-16_10:00:00\n  rank: 3 (local_rank: 1)\n  exitcode: 1 (pid: 12)\n"


@pytest.mark.parametrize("before", ["", CLOSED, ENDED, CLOSED + ENDED])
def test_the_rank_that_failed_first_leads_before_what_the_others_report(before):
    answer = found(before + report(1))
    assert (answer.telling.rank, answer.telling.node, answer.about) == (3, "node2", "application")
    assert "fail first" in answer.telling.says
    assert found(before + OF_TORCH_1_9).telling.rank == 3


@pytest.mark.parametrize("second", [1, 2])
def test_of_several_ranks_that_were_killed_the_agents_first_one_is_named(second):
    answer = found(ENDED + report(-9, other_second=second))
    assert (answer.telling.rank, answer.telling.node, answer.about) == (3, "node2", "process killed")


def test_the_report_is_read_with_the_prefix_that_kubectl_writes_on_every_line():
    prefix = "[pod/train-worker-0-with-a-long-name/pytorch] 2026-11-27T10:00:01.123456789Z "
    lines = [prefix + line for line in report(-9).splitlines()]
    assert found("\n".join(lines)).telling.rank == 3
    assert found("\n".join(line.replace("-9", "1") for line in lines)).telling.rank == 3


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stderr>: "])
def test_the_task_that_starts_torchrun_is_no_rank(prefix):
    def labelled(text):
        return "".join(f"{prefix}{line}\n" for line in text.splitlines())

    module = "ModuleNotFoundError: No module named 'x'\n"
    assert found(labelled(report(1))).telling.rank == 3
    assert found(labelled(module + report(1))).telling.rank == 3
    assert found(labelled(module + seen_by_agent())).telling.rank is None
    assert found(labelled(module)).telling.rank == 0  # without torchrun each task is a rank


RESTARTED = (
    "[E1127 10:00:09.44 ProcessGroupGloo.cpp:67] Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152]"
    " timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14772$1\n"
)


def seen_by_agent(code=1, second=1):
    return (
        f"E1127 10:00:0{second}.968000 22413 torch/distributed/elastic/multiprocessing/api.py:1002]"
        f" failed (exitcode: {code}) local_rank: 2 (pid: 2{second}) of binary: /usr/bin/python\n"
    )


@pytest.mark.parametrize(("error", "code"), [("[rank2]: KeyError: 'lr'\n", 1), ("", -9)])
def test_what_fails_while_ranks_start_again_is_no_cause_of_the_first_failure(error, code):
    answer = found(error + CLOSED + seen_by_agent(code) + RESTARTED + seen_by_agent(1, 9) + report(1))
    assert (rules_of(answer), answer.telling.line) == ([], 1 if error else 2)


def test_what_fails_while_ranks_start_for_the_first_time_is_the_cause():
    answer = found(RESTARTED + seen_by_agent() + RESTARTED + seen_by_agent(1, 9) + report(1))
    assert answer.causes[0].rule == "net-hostname-loopback"
    answer = found(CLOSED + seen_by_agent() + RESTARTED + report(1))  # no attempt follows: lines of several streams
    assert answer.causes[0].rule == "net-hostname-loopback"


def test_a_known_error_goes_before_the_report_and_takes_its_rank():
    answer = found(f"RuntimeError: No CUDA GPUs are available\n{report(1)}")
    assert (answer.causes[0].rule, answer.causes[0].rank, answer.causes[0].node) == ("gpu-none-visible", 3, "node2")


def test_the_first_rank_that_ended_after_a_collective_that_timed_out_is_not_blamed_for_it():
    late = "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
    assert found(late + CLOSED + report(-6)).telling.rank == 0
