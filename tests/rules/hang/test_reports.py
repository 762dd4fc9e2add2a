"""A running job in every format: the rank, its line, and what the others wait in."""

from __future__ import annotations

import msgspec
import pytest
from made.running import blocked, busy, job_of, running, sleeper, waiter

from distcheck.facts.hang import HangNode, SystemCall
from distcheck.facts.job import Job
from distcheck.report import FORMATS, Detail, render
from distcheck.report.schema.document import Document
from distcheck.rules.diagnose import judge

OPEN = SystemCall("openat", "/mnt/data/shard-17.bin")
WAITERS = (waiter(0), waiter(1), waiter(3, node="node2"))
HUNG = job_of(running(*WAITERS, blocked(2, OPEN)))


def shown(job, form, **options):
    return render(form, job, judge(job), options=Detail(**options))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_rule_and_all_but_metrics_the_line(form):
    text = shown(HUNG, form)
    assert "hang-rank-elsewhere" in text
    assert ("data.py:41" in text) == (form != "prometheus")


FIRST = {
    "HUNG: rank 2 on node1 (process 4702) holds up 3 ranks: waits at data.py:41 in load_shard, "
    'open("/mnt/data/shard-17.bin"), for at least 2 s. [hang-rank-elsewhere] exit code 30: fix the program': HUNG,
    "SLOW: rank 2 on node1 (process 4702) holds up 3 ranks: computes at eval.py:7 in evaluate, CPU 90 %, for at least "
    "2 s. [hang-rank-slow] exit code 0": job_of(running(*WAITERS, busy(2))),
    "NOT HUNG: 2 of 2 ranks made progress in 2 s; none keeps the others waiting. exit code 0": job_of(
        running(busy(0), busy(1))
    ),
    "CANNOT TELL: all ranks only sleep or poll at a.py:4; none waits for another. [hang-untold] exit code 20": job_of(
        running(*(sleeper(n, "/home/me/a.py:4 main") for n in (0, 1)))
    ),
}


@pytest.mark.parametrize("line", FIRST, ids=lambda line: line.partition(":")[0])
def test_the_first_and_the_last_line_begin_with_the_answer(line):
    lines = shown(FIRST[line], "text").splitlines()
    assert (lines[0], lines[-1]) == (line, line)
    assert len(line) <= 200


def test_the_table_has_a_row_for_the_odd_rank_and_one_for_those_at_the_same_line():
    table = shown(HUNG, "text").split("\n\n")[1].splitlines()
    assert [row.split()[0] for row in table[2:]] == ["2", "0-1,3"]
    assert table[3].split()[1] == "node[1-2]"
    assert shown(HUNG, "text", all_ranks=True).split("\n\n")[1].count("\n") == 5


def test_the_json_report_has_the_answer_and_the_saved_job_gives_it_again():
    report = msgspec.json.decode(shown(HUNG, "json"), type=Document)
    assert report.hang.answer == "hung"
    assert [(o.rank, o.node, o.pid, o.at, o.function, o.state) for o in report.hang.odd] == [
        (2, "node1", 4702, "data.py:41", "load_shard", "S")
    ]
    assert msgspec.to_builtins(report.hang.waiting) == ({"ranks": "0-1,3", "at": "train.py:88", "in": "all_reduce"},)
    again = msgspec.json.decode(msgspec.json.encode(HUNG), type=Job)
    assert shown(again, "json") == shown(HUNG, "json")


def test_ranks_without_a_process_are_rows_and_nodes_without_an_answer_are_named():
    job = job_of(running(*WAITERS, world=4, nodes=(HangNode("node1"), HangNode("node3", problem="no answer in time"))))
    report = msgspec.json.decode(shown(job, "json"), type=Document)
    assert (report.hang.missing, report.hang.unseen) == ((), (2,))
    assert "node3 does not answer (no answer in time)" in shown(job, "text")
    assert ["?", "node3", "-", "no", "answer"] in [line.split()[:5] for line in shown(job, "text").splitlines()]
    gone = msgspec.json.decode(shown(job_of(running(*WAITERS, world=4)), "json"), type=Document)
    assert [(row.rank, row.status) for row in gone.ranks][2:] == [(3, "ok"), (2, "missing")]
    assert [(odd.rank, odd.pid, odd.reason) for odd in gone.hang.odd] == [(2, None, "no process")]


def test_many_alike_ranks_and_silent_nodes_are_a_row_each():
    ranks = [sleeper(n, node=f"node{n}") if n % 2 else waiter(n, node=f"node{n}") for n in range(100)]
    nodes = [
        HangNode(f"node{n}", "" if n < 100 else f"ssh: connect to host node{n} port 22: No route") for n in range(200)
    ]
    table = shown(job_of(running(*ranks, nodes=tuple(nodes), local=False)), "text").split("\n\n")[1].splitlines()
    assert [row.split()[0] for row in table[2:5]] == ["1,3,5,7,…", "0,2,4,6,…", "?"]
    assert " node[100-199] " in table[4]
    assert " ssh: connect to host … port 22: No route " in table[4]
