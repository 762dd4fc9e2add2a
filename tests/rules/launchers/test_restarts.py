"""An elastic job that a node may join, and the restart in the first lines of a report."""

from __future__ import annotations

import pytest

from distcheck.report.document import document
from distcheck.report.summary import checked
from distcheck.rules.diagnose import diagnose

ELASTIC = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=7", "train.py")


@pytest.fixture
def attempt(under):
    """Build a job under torchrun on two nodes."""

    def make(restarts=0, arguments=ELASTIC, shared="False"):
        counts = {"TORCHELASTIC_RESTART_COUNT": str(restarts), "TORCHELASTIC_MAX_RESTARTS": "3"}
        return under(*arguments, nodes=2, TORCHELASTIC_USE_AGENT_STORE=shared, **counts)

    return make


def test_the_first_lines_of_a_report_have_the_restart(attempt):
    job = attempt(restarts=1)
    assert "launcher torchrun (restart 1 of 3), " in checked(job, document(job, diagnose(job)))[0]
    first = attempt()
    assert "restart" not in checked(first, document(first, diagnose(first)))[0]


def test_elastic_join_blocked_where_a_node_can_join_and_the_store_is_shared(attempt, judge):
    found = {f.rule: f for f in judge(attempt(shared="True")).findings}["elastic-join-blocked"]
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
    findings = judge(attempt(arguments=arguments, shared=shared)).findings
    assert "elastic-join-blocked" not in [f.rule for f in findings]
