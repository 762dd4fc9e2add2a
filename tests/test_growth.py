"""Judging and rendering take no more for each node of a large job than of a small one, whatever is wrong with it.

No clock is read: every line of distcheck is counted. Jobs of thrice as many nodes may run a line thrice as often, and a
little more where the nodes' trials of each other grow with the logarithm; nine times as often is a loop over pairs.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from forms.sampled import sampled
from made import real_job
from made.running import busy, job_of, running, sleeper, unreadable, waiter

import distcheck
from distcheck import report
from distcheck.facts.hang import HangNode
from distcheck.rules import all_rules
from distcheck.rules.diagnose import diagnose

if TYPE_CHECKING:
    from types import FrameType

pytestmark = pytest.mark.long
NOT_JUDGED = {"they are late", "no node tried them", "one GPU for all ranks", "their cores are taken"}
"""Of so many nodes no figure is expected in advance; a node need not be tried; here each has one rank; and half of the
nodes are what is usual."""
FEW, MANY = 20, 60
"""Nodes; each tries 5 others, and 6."""
PER_NODE = 1
LEAST = 60
"""A line may run as often as that in the small job: the table of a small one's report hides no ranks."""
IN_EVERY_CHANGE = (
    "they do not answer", "jumbo frames from them are lost", "another MASTER_PORT", "one GPU for all ranks",
    "they did not come", "the ranks of a node died", "they are late",
)  # fmt: skip
"""Trials, variables, GPUs, absence, deaths and figures: one of each. Counting every line takes a second for a fault."""


@pytest.fixture(scope="module")
def jobs():
    all_rules()
    return {nodes: real_job.healthy(nodes, PER_NODE) for nodes in (FEW, MANY)}


def lines(job):
    """Return how often each line of distcheck is run for a job, and the diagnosis."""
    count: Counter[tuple[str, int]] = Counter()

    def line(frame: FrameType, event: str, _: object):
        if event == "line":
            count[frame.f_code.co_filename, frame.f_lineno] += 1
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: line if "/distcheck/" in frame.f_code.co_filename else None)
    try:
        diagnosis = diagnose(job)
        report.render("text", job, diagnosis)
        report.render("json", job, diagnosis)
    finally:
        sys.settrace(before)
    return count, diagnosis


def quadratic(few, many):
    """Return the lines that a job of MANY nodes runs far more often than one of FEW, with both counts."""
    return {where: (few[where], n) for where, n in many.items() if n > 2.2 * MANY / FEW * max(few[where], LEAST)}


def test_a_healthy_job_takes_as_much_for_each_node_however_many_there_are(jobs):
    few, many = lines(jobs[FEW]), lines(jobs[MANY])
    assert [f.severity for f in many[1].findings if f.severity != "info"] == []
    assert sum(many[0].values()) > 10_000, "the lines were counted"
    assert quadratic(few[0], many[0]) == {}


@pytest.mark.parametrize("fault", sampled(list(real_job.FAULTS), *IN_EVERY_CHANGE))
def test_a_fault_of_many_nodes_takes_as_much_for_each_of_them(jobs, fault):
    few, many = (lines(real_job.faulty(jobs[nodes], fault, 2)) for nodes in (FEW, MANY))
    assert [f.message for f in many[1].findings if f.rule == "probe-rule-crashed"] == []
    said, before = many[1], diagnose(jobs[MANY])
    assert (said.findings, said.not_checked) != (before.findings, before.not_checked) or fault in NOT_JUDGED
    assert quadratic(few[0], many[0]) == {}


HANGS = {
    "one sleeps": lambda n, node: sleeper(n, node=node) if n == 3 else waiter(n, node=node),
    "half of them at one line": lambda n, node: sleeper(n, node=node) if n % 2 else waiter(n, node=node),
    "each at a line of its own": lambda n, node: sleeper(n, f"/me/a.py:{n} f", node=node) if n % 2 else waiter(n),
    "two sides": lambda n, node: waiter(n, ("barrier", "all_reduce")[n % 2], node=node),
    "a few in another collective": lambda n, node: waiter(n, "barrier" if n % 5 == 1 else "all_reduce", node=node),
    "all at one line": lambda n, node: waiter(n, node=node),
    "all wait for their GPUs": lambda n, node: busy(n, share=1.0, cuda=True, node=node),
    "nothing may be read": lambda n, node: unreadable(waiter(n, node=node)),
    "no answer of half of the nodes": lambda n, node: None if n % 2 else waiter(n, node=node),
}


@pytest.mark.parametrize("hang", sampled(list(HANGS), "each at a line of its own", "no answer of half of the nodes"))
def test_a_hang_of_many_ranks_takes_as_much_for_each_of_them(hang):
    counts = []
    for size in (FEW, MANY):
        seen = {n: HANGS[hang](n, f"node{n}") for n in range(size)}
        nodes = tuple(HangNode(f"node{n}", "" if rank else f"node{n}: no route") for n, rank in seen.items())
        job = job_of(running(*filter(None, seen.values()), world=size, nodes=nodes, local=None not in seen.values()))
        counts.append(lines(job)[0])
        assert len(report.render("text", job, lines(job)[1])) < 8000
    assert quadratic(*counts) == {}


def test_a_loop_over_pairs_is_noticed(jobs, monkeypatch):
    source = "def judge(job):\n    return iter(() for one in job.nodes for other in job.nodes if one is None)\n"
    code = compile(source, "/distcheck/made_up.py", "exec")
    namespace = {}
    exec(code, namespace)
    rule = all_rules()[0]._replace(judge=namespace["judge"], look="environment")
    monkeypatch.setattr("distcheck.rules.diagnose.rules_for", lambda _: (rule,))
    few, many = (lines(jobs[nodes])[0] for nodes in (FEW, MANY))
    assert ("/distcheck/made_up.py", 2) in quadratic(few, many)


LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BUILT = (ast.BinOp, ast.ListComp, ast.SetComp, ast.DictComp)


def rebuilt(source: str) -> list[str]:
    """Return the tests of membership within loops whose collection is built again each time, which is one line."""
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOPS)]
    tests = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Compare)]
    return [
        ast.unparse(test)
        for test in tests
        for way, where in zip(test.ops, test.comparators, strict=True)
        if isinstance(way, ast.In | ast.NotIn) and isinstance(where, BUILT)
    ]


@pytest.mark.parametrize("floor", ["rules", "report", "expectation"])
def test_no_loop_builds_the_collection_in_which_it_looks(floor):
    modules = Path(distcheck.__file__).parent.joinpath(floor).rglob("*.py")
    assert {module.name: found for module in modules if (found := rebuilt(module.read_text()))} == {}


def test_a_collection_that_is_built_in_a_loop_is_noticed():
    assert rebuilt("for a in b:\n    if a in c | d:\n        pass") == ["a in c | d"]
    assert rebuilt("[a for a in b if a.x not in {c.x for c in d}]") == ["a.x not in {c.x for c in d}"]
    assert rebuilt("e = c | d\nfor a in b:\n    if a in e or a in {1, 2}:\n        pass") == []
