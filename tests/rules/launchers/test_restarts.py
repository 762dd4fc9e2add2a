"""What changed since torchrun's earlier attempt."""

from __future__ import annotations

import pytest
from rules.launchers.conftest import agent

from distcheck.facts.base import Missing
from distcheck.facts.rank import RunAttempt
from distcheck.report.document import document
from distcheck.report.summary import checked
from distcheck.rules.diagnose import diagnose
from distcheck.rules.job.run_attempts import restart, this_attempt

ELASTIC = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=7", "train.py")
FIRST = RunAttempt(0)


def those(*numbers, pid=9):
    return {f"node{n}/boot/net|{pid}": f"node{n}" for n in numbers}


@pytest.fixture
def attempt(under, change):
    """Build a job under torchrun on nodes 1 to `nodes`; `remembered` is what local rank 0 of each node remembers."""

    def make(nodes, *remembered, restarts=0, arguments=ELASTIC, shared="False"):
        counts = {"TORCHELASTIC_RESTART_COUNT": str(restarts), "TORCHELASTIC_MAX_RESTARTS": "3"}
        job = under(*arguments, nodes=nodes, TORCHELASTIC_USE_AGENT_STORE=shared, **counts)
        for number, memory in enumerate(remembered):
            job = change.process(job, number * 2, earlier_attempt=memory)
        return job

    return make


@pytest.fixture
def changed(judge):
    """Return the finding about nodes that changed, or None."""
    return lambda job: {f.rule: f for f in judge(job).findings}.get("elastic-nodes-changed")


@pytest.mark.parametrize(
    ("remembered", "restarts", "severity", "nodes", "words"),
    [
        ([RunAttempt(1, those(1)), FIRST], 0, "info", ["node2"],
         "since torchrun's attempt 1, node2 joined: 1 node then, 2 now, in attempt 2"),
        ([RunAttempt(2, those(1, 2, 3))] * 2, 1, "warning", ["node3"],
         "since torchrun's attempt 2, node3 left: 3 nodes then, 2 now, in attempt 3"),
        ([RunAttempt(1, those(1, 3)), FIRST], 0, "warning", ["node3", "node2"],
         "node3 left and node2 joined: 2 nodes then, 2 now"),
        ([RunAttempt(1, {**those(1), **those(2, pid=8)}), FIRST], 0, "warning", ["node2"],
         "the agent of node2 was started again"),
    ],
    ids=["joined", "left", "replaced", "started again"],
)  # fmt: skip
def test_elastic_nodes_changed_names_the_nodes(attempt, changed, remembered, restarts, severity, nodes, words):
    found = changed(attempt(2, *remembered, restarts=restarts))
    assert (found.severity, found.scope, list(found.nodes)) == (severity, "node", nodes)
    assert words in found.message


@pytest.mark.parametrize(
    ("remembered", "restarts"),
    [
        ([FIRST, FIRST], 0),
        ([RunAttempt(1, those(1, 2))] * 2, 1),
        ([RunAttempt(1, those(1, 3)), RunAttempt(4, those(1, 2))], 0),
    ],
    ids=["first attempt", "the same agents again", "the latest memory counts"],
)
def test_elastic_nodes_changed_is_silent_where_none_changed(attempt, changed, remembered, restarts):
    assert changed(attempt(2, *remembered, restarts=restarts)) is None


def test_a_node_that_left_is_added_by_starting_torchrun_there(attempt, changed):
    (command,) = changed(attempt(2, RunAttempt(2, those(1, 2, 3)))).fix.commands
    assert command.startswith("torchrun --nnodes=1:4")
    assert command.endswith("# on node3")
    assert changed(attempt(2, RunAttempt(1, those(1)), FIRST)).fix.commands == (), "one that joined is there"


def test_elastic_nodes_changed_names_a_node_where_each_agent_starts_one_distcheck_with_nproc(job_of, change, changed):
    job = change.environment(job_of(2, 2, "distcheck"), None, TORCHELASTIC_RUN_ID="7")
    job = change.process(job, None, agent=agent(*ELASTIC), earlier_attempt=RunAttempt(1, those(1, 2, 3)))
    assert changed(job).nodes == ("node3",)


def test_elastic_nodes_changed_blames_nobody_while_ranks_are_missing_or_an_agent_is_unknown(attempt, change, changed):
    job = attempt(3, RunAttempt(1, those(1, 2, 4)))
    assert changed(job) is not None
    assert changed(change.keep(job, 0, 1, 2, 3, 4)) is None
    assert changed(change.process(job, 2, agent=None)) is None


@pytest.mark.parametrize(
    ("remembered", "restarts", "nodes", "words"),
    [
        ([Missing(reason="the folder /logs/7 did not answer within 3 s")], 0, ("node1",), "/logs/7 did not answer"),
        ([FIRST, FIRST], 1, (), "no agent remembers an earlier attempt in which all ranks met"),
    ],
)
def test_elastic_nodes_changed_is_not_checked_without_a_memory(attempt, judge, remembered, restarts, nodes, words):
    diagnosis = judge(attempt(2, *remembered, restarts=restarts))
    (unlooked,) = [n for n in diagnosis.not_checked if n.rule == "elastic-nodes-changed"]
    assert (unlooked.nodes, unlooked.required) == (nodes, False)
    assert words in unlooked.reason


def test_the_first_line_of_a_report_has_the_attempt_and_the_restart(attempt):
    job = attempt(2, RunAttempt(2, those(1, 2)), restarts=1)
    assert "launcher torchrun (attempt 3, restart 1 of 3), " in checked(job, document(job, diagnose(job)))[0]
    assert restart(attempt(2, RunAttempt(1, those(1)))) == "attempt 2"
    assert restart(attempt(2)) == ""


def test_an_attempt_is_remembered_with_all_its_agents_and_only_if_all_ranks_met(attempt, change):
    job = attempt(2, FIRST, FIRST)
    assert this_attempt(job) == RunAttempt(1, those(1, 2))
    assert this_attempt(change.keep(job, 0, 1, 2)) is None
    assert this_attempt(attempt(2)) is None


def test_elastic_join_blocked_where_a_node_can_join_and_the_store_is_shared(attempt, judge):
    found = {f.rule: f for f in judge(attempt(2, shared="True")).findings}["elastic-join-blocked"]
    assert (found.severity, found.scope) == ("warning", "job")
    assert found.message == "the world has 2 nodes and may grow to 4, but a node that joins ends the job"
    export, fixed = found.fix.commands
    assert export.startswith("export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; torchrun --nnodes=1:4 ")
    assert fixed.startswith("torchrun --nnodes=2 ")


@pytest.mark.parametrize(
    ("arguments", "shared"),
    [
        (ELASTIC, "False"),
        (("--nnodes=1:2", *ELASTIC[1:]), "True"),
        (("--nnodes=2", *ELASTIC[1:]), "True"),
        (("--nnodes=3:4", *ELASTIC[1:]), "True"),
        (("--nnodes=1:4", "--rdzv-backend=etcd-v2", *ELASTIC[2:]), "True"),
        (("--standalone", *ELASTIC), "True"),
        ((*ELASTIC[:2], "--rdzv-endpoint=localhost:29400", *ELASTIC[3:]), "True"),
        ((*ELASTIC[:3], "--rdzv-id=", "train.py"), "True"),
    ],
)
def test_elastic_join_blocked_is_silent_where_no_node_can_join_or_the_store_is_another(
    attempt, judge, arguments, shared
):
    findings = judge(attempt(2, arguments=arguments, shared=shared)).findings
    assert "elastic-join-blocked" not in [f.rule for f in findings]
