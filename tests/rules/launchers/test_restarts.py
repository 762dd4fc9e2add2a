"""What changed since torchrun's earlier attempt."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent, RunAttempt
from distcheck.report.document import document
from distcheck.report.summary import checked
from distcheck.rules.diagnose import diagnose
from distcheck.rules.job.run_attempts import restart, this_attempt

NODES = {f"node{n}/boot/net|9": f"node{n}" for n in range(1, 5)}
ELASTIC = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=7", "train.py")


def those(*numbers, pid=9):
    return {f"node{n}/boot/net|{pid}": f"node{n}" for n in numbers}


@pytest.fixture
def attempt(job_of, change):
    """Build a job under torchrun on nodes 1 to `nodes`; `remembered` is what local rank 0 of each node remembers."""

    def make(nodes, *remembered, restarts=0, arguments=ELASTIC, looks=("environment", "meeting"), per_node=2):
        job = job_of(nodes, per_node, "torchrun", looks)
        job = change.environment(
            job, None, TORCHELASTIC_RUN_ID="7", TORCHELASTIC_RESTART_COUNT=str(restarts), TORCHELASTIC_MAX_RESTARTS="3",
            TORCHELASTIC_USE_AGENT_STORE="False",
        )  # fmt: skip
        agent = Agent(program="torchrun", pid=9, arguments=arguments, exported=Variables({}))
        job = change.process(job, None, agent=agent)
        for number, memory in enumerate(remembered):
            job = change.process(job, number * per_node, earlier_attempt=memory)
        return job

    return make


@pytest.fixture
def changed(judge):
    """Return the finding about nodes that changed, or None."""

    def one(job):
        found = {f.rule: f for f in judge(job).findings}
        return found.get("elastic-nodes-changed")

    return one


FIRST = RunAttempt(0)


def test_elastic_nodes_changed_is_silent_in_the_first_attempt(attempt, changed):
    assert changed(attempt(2, FIRST, FIRST)) is None


def test_elastic_nodes_changed_is_silent_where_the_same_agents_start_again(attempt, changed):
    assert changed(attempt(2, RunAttempt(1, those(1, 2)), RunAttempt(1, those(1, 2)), restarts=1)) is None


def test_elastic_nodes_changed_names_a_node_that_joined(attempt, changed):
    found = changed(attempt(2, RunAttempt(1, those(1)), FIRST))
    assert (found.severity, found.scope, found.nodes) == ("info", "node", ("node2",))
    assert found.message == "since torchrun's attempt 1, node2 joined: 1 node then, 2 now, in attempt 2"
    assert found.fix.commands == ()


def test_elastic_nodes_changed_names_a_node_that_left_and_how_to_add_it(attempt, changed):
    found = changed(attempt(2, RunAttempt(2, those(1, 2, 3)), RunAttempt(2, those(1, 2, 3)), restarts=1))
    assert (found.severity, found.nodes) == ("warning", ("node3",))
    assert found.message == "since torchrun's attempt 2, node3 left: 3 nodes then, 2 now, in attempt 3"
    assert found.fix.commands[0].startswith("torchrun --nnodes=1:4")
    assert found.fix.commands[0].endswith("# on node3")


def test_elastic_nodes_changed_names_a_node_and_its_replacement(attempt, changed):
    found = changed(attempt(2, RunAttempt(1, those(1, 3)), FIRST))
    assert (found.severity, found.nodes) == ("warning", ("node3", "node2"))
    assert "node3 left and node2 joined: 2 nodes then, 2 now" in found.message


def test_elastic_nodes_changed_names_a_node_whose_agent_was_started_again(attempt, changed):
    found = changed(attempt(2, RunAttempt(1, {**those(1), **those(2, pid=8)}), FIRST))
    assert (found.severity, found.nodes) == ("warning", ("node2",))
    assert "the agent of node2 was started again" in found.message


def test_elastic_nodes_changed_names_a_node_where_each_agent_starts_one_distcheck_with_nproc(job_of, change, changed):
    job = change.environment(job_of(2, 2, "distcheck"), None, TORCHELASTIC_RUN_ID="7")
    agent = Agent(program="torchrun", pid=9, arguments=ELASTIC, exported=Variables({}))
    job = change.process(job, None, agent=agent, earlier_attempt=RunAttempt(1, those(1, 2, 3)))
    assert changed(job).nodes == ("node3",)


def test_elastic_nodes_changed_believes_the_latest_memory(attempt, changed):
    assert changed(attempt(2, RunAttempt(1, those(1, 3)), RunAttempt(4, those(1, 2)))) is None


def test_elastic_nodes_changed_blames_nobody_while_ranks_are_missing(attempt, change, changed):
    job = attempt(3, RunAttempt(1, those(1, 2, 4)))
    assert changed(job) is not None
    assert changed(change.keep(job, 0, 1, 2, 3, 4)) is None


def test_elastic_nodes_changed_blames_nobody_where_an_agent_is_unknown(attempt, change, changed):
    job = attempt(2, RunAttempt(1, those(1, 3)))
    assert changed(change.process(job, 2, agent=None)) is None


def test_elastic_nodes_changed_is_not_checked_where_the_memory_cannot_be_read(attempt, judge):
    diagnosis = judge(attempt(2, Missing(reason="the folder /logs/7 did not answer within 3 s")))
    (unlooked,) = [n for n in diagnosis.not_checked if n.rule == "elastic-nodes-changed"]
    assert (unlooked.nodes, unlooked.required) == (("node1",), False)
    assert "/logs/7 did not answer" in unlooked.reason


def test_elastic_nodes_changed_is_not_checked_at_a_restart_that_no_agent_remembers(attempt, judge):
    diagnosis = judge(attempt(2, FIRST, FIRST, restarts=1))
    (unlooked,) = [n for n in diagnosis.not_checked if n.rule == "elastic-nodes-changed"]
    assert unlooked.reason == "no agent remembers an earlier attempt in which all ranks met"


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


def shared(job, change):
    return change.environment(job, None, TORCHELASTIC_USE_AGENT_STORE="True")


def test_elastic_join_blocked_where_a_node_can_join_and_the_store_is_shared(attempt, change, judge):
    found = {f.rule: f for f in judge(shared(attempt(2), change)).findings}["elastic-join-blocked"]
    assert (found.severity, found.scope) == ("warning", "job")
    assert found.message == "the world has 2 nodes and may grow to 4, but a node that joins ends the job"
    export, fixed = found.fix.commands
    assert export.startswith("export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; torchrun --nnodes=1:4 ")
    assert fixed.startswith("torchrun --nnodes=2 ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nnodes=1:2", *ELASTIC[1:]),
        ("--nnodes=2", *ELASTIC[1:]),
        ("--nnodes=1:4", "--rdzv-backend=etcd-v2", *ELASTIC[2:]),
        ("--standalone", *ELASTIC),
        ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", "--rdzv-id=7", "train.py"),
        (*ELASTIC[:3], "--rdzv-id=", "train.py"),
        ("--nnodes=3:4", *ELASTIC[1:]),
    ],
)
def test_elastic_join_blocked_is_silent_where_no_node_can_join_or_the_store_is_another(
    attempt, change, judge, arguments
):
    job = shared(attempt(2, arguments=arguments), change)
    assert "elastic-join-blocked" not in [f.rule for f in judge(job).findings]


def test_elastic_join_blocked_is_silent_where_the_store_is_not_shared(attempt, judge):
    assert "elastic-join-blocked" not in [f.rule for f in judge(attempt(2)).findings]
