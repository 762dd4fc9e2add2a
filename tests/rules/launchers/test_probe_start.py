"""Starting probes from outside: each rule speaks of its own fault, at its own node, and nobody else is blamed."""

from __future__ import annotations

import pytest

from distcheck.facts.job import Launched, LaunchedNode, LeftOut
from distcheck.facts.network import Attempt
from distcheck.report.document import document
from distcheck.report.headline import headline
from distcheck.rules.finding import excluded_nodes
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.launchers import started_probes

OURS = ("launchers.probe_start", "environment.ranks")
LOOKS = ("launch", "environment", "meeting")
SSH = ("/opt/venv/bin/python", "-m", "distcheck.run.remote_probe")


@pytest.fixture
def launched(job_of, change):
    """A job of 4 nodes x 2 ranks that distcheck started; `fates` are those of nodes by number, from 1."""

    def make(engine="ssh", command=SSH, exit_code=None, words="", left_out=(), need=None, **fates):
        job = change.asked(job_of(4, 2, launcher="distcheck"), looks=LOOKS, need=need)
        nodes = []
        for n in range(4):
            own = {"outcome": "reported"} | fates.get(f"node{n + 1}", {})
            nodes.append(LaunchedNode(name=f"node{n + 1}", ranks=(2 * n, 2 * n + 1), **own))
        silent = {rank for node in nodes if node.outcome != "reported" for rank in node.ranks}
        job = change.job(job, ranks=tuple(r for r in job.ranks if r.placement.rank not in silent))
        facts = Launched(engine, tuple(command), tuple(nodes), exit_code=exit_code, words=words)
        return change.job(job, launched=facts, left_out=left_out)

    return make


def said(diagnosis):
    return [(f.rule, f.severity, f.scope, f.confirmed, f.nodes, f.ranks) for f in diagnosis.findings]


def by_node(diagnosis):
    return [(f.rule, f.nodes) for f in diagnosis.findings]


def test_a_healthy_launch_is_silent(launched, judge):
    assert judge(launched(), *OURS)[:2] == ((), ())


UNREACHABLE = {"outcome": "unreachable", "exit_code": 255, "words": "ssh: connect to host node3: No route to host"}
MISSING = {"outcome": "no probe", "exit_code": 127, "words": "bash: /opt/venv/bin/python: No such file or directory"}
ENDED = {"outcome": "ended", "exit_code": 137, "words": "Killed"}
UNREADABLE = {"outcome": "unreadable", "exit_code": 0, "distcheck": "0.0.1"}
SILENT = {"outcome": "silent"}


@pytest.mark.parametrize(
    ("fate", "rule", "confirmed", "code"),
    [
        (UNREACHABLE, "launch-node-unreachable", False, 20),
        (MISSING, "launch-probe-missing", True, 40),
        (ENDED, "launch-probe-failed", False, 20),
        (UNREADABLE, "launch-probe-unreadable", False, 20),
        (SILENT, "launch-probe-silent", False, 20),
    ],
)
def test_the_fault_of_one_node_is_reported_for_that_node_only(launched, judge, fate, rule, confirmed, code):
    diagnosis = judge(launched(node3=fate), *OURS)
    assert said(diagnosis) == [(rule, "error", "node", confirmed, ("node3",), (4, 5))]
    assert "node3 (ranks 4-5)" in diagnosis.findings[0].message
    assert diagnosis.verdict.exit_code == code
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"], "explained, and so not said twice"


NO_MODULE = {"outcome": "no probe", "exit_code": 1, "words": "/opt/venv/bin/python: No module named distcheck"}


def test_each_node_has_its_own_cause_and_the_advice_counts_all_of_them(launched, judge):
    refused = UNREACHABLE | {"words": "ssh: connect to host node2 port 22: Connection refused"}
    job = launched(node2=refused, node3=NO_MODULE, node4=MISSING)
    diagnosis = judge(job, *OURS)
    found = {f.nodes: f for f in diagnosis.findings}
    assert set(found) == {("node2",), ("node3",), ("node4",)}
    assert found["node2",].message.endswith("node2 (ranks 2-3): ssh: connect to host node2 port 22: Connection refused")
    assert found["node3",].message.startswith("distcheck is not installed in /opt/venv/bin/python on node3 (")
    assert found["node3",].fix.commands == ("ssh node3 /opt/venv/bin/python -m pip install distcheck==0.1.0",)
    assert found["node4",].message.startswith("/opt/venv/bin/python cannot be run on node4 (ranks 6-7): bash: ")
    assert found["node4",].fix.commands == ("ssh node4 ls -lL /opt/venv/bin/python", "ssh node4 mount")
    report = document(job, diagnosis)
    assert (report.exit_code, report.exclude.nodes) == (40, ("node3", "node4"))
    assert report.headline.endswith(" exit code 40: exclude node[3-4], perhaps node2 too, and start again")
    alone = launched(node3=NO_MODULE, node4=MISSING)
    assert headline(alone, judge(alone, "launchers.probe_start")).endswith(
        " exit code 40: exclude node[3-4] and start again"
    )


@pytest.mark.parametrize("fate", [UNREACHABLE, MISSING, NO_MODULE, ENDED])
def test_nodes_with_one_cause_are_one_finding(launched, judge, fate):
    own = {f"node{n}": fate | {"words": fate["words"].replace("node3", f"node{n}")} for n in (3, 4)}
    assert [f.nodes for f in judge(launched(**own), "launchers.probe_start").findings] == [("node3", "node4")]


@pytest.mark.parametrize("fate", [UNREACHABLE, MISSING, ENDED, UNREADABLE])
def test_a_fault_of_all_nodes_is_a_fault_of_the_job(launched, judge, fate):
    diagnosis = judge(launched(node1=fate, node2=fate, node3=fate, node4=fate), *OURS)
    assert [(f.scope, len(f.nodes)) for f in diagnosis.findings] == [("job", 4)]
    assert diagnosis.verdict.exit_code == 30


def test_no_report_from_any_node_is_unknown_and_not_a_job_fault(launched, judge):
    diagnosis = judge(launched(node1=SILENT, node2=SILENT, node3=SILENT, node4=SILENT), *OURS)
    assert [f.scope for f in diagnosis.findings] == ["node"]
    assert diagnosis.verdict.exit_code == 20


BROKEN_WORDS = "Welcome to node3\ndistcheck 0.1.0: the probe failed: RuntimeError: no such thing"


@pytest.mark.parametrize("outcome", ["ended", "reported"])
@pytest.mark.parametrize("code", [70, None])
def test_a_failure_of_distcheck_itself_blames_no_node_and_no_job(launched, judge, outcome, code):
    fate = {"outcome": outcome, "exit_code": code, "words": BROKEN_WORDS}
    diagnosis = judge(launched(node3=fate), *OURS)
    assert said(diagnosis) == [("launch-probe-broken", "error", "tool", True, ("node3",), (4, 5))]
    line = BROKEN_WORDS.splitlines()[-1]
    assert diagnosis.findings[0].message == f"distcheck itself failed on node3 (ranks 4-5): {line}"
    assert (diagnosis.verdict.name, diagnosis.verdict.exit_code) == ("unknown", 70)
    assert document(launched(node3=fate), diagnosis).exclude.nodes == ()


def test_a_setup_that_exits_with_code_70_is_no_failure_of_distcheck(launched, judge):
    fate = {"outcome": "ended", "exit_code": 70, "words": "module: unable to locate cuda"}
    assert by_node(judge(launched(node3=fate), *OURS)) == [("launch-probe-failed", ("node3",))]
    assert judge(launched(node3=fate | {"outcome": "reported"}), "launchers.probe_start").findings == ()


def test_a_version_that_does_not_understand_its_assignment_is_incompatible_and_not_broken(launched, judge):
    fate = UNREADABLE | {"exit_code": 70, "words": BROKEN_WORDS}
    assert by_node(judge(launched(node3=fate), *OURS)) == [("launch-probe-unreadable", ("node3",))]


LOST, BROKEN = {"outcome": "ended"}, {"outcome": "ended", "exit_code": 70, "words": BROKEN_WORDS}
CUT = {"outcome": "unreachable", "words": UNREACHABLE["words"]}


@pytest.mark.parametrize(
    ("engine", "exit_code", "fate", "rule", "verdict"),
    [
        ("slurm", 70, BROKEN, "launch-probe-broken", 70),
        ("mpi", 1, MISSING, "launch-probe-missing", 40),
        ("mpi", 255, CUT, "launch-node-unreachable", 20),
    ],
)
def test_probes_that_the_launcher_ends_with_others_are_not_blamed(
    launched, judge, engine, exit_code, fate, rule, verdict
):
    job = launched(engine, ("launcher",), exit_code, node1=LOST, node2=LOST, node3=fate, node4=LOST)
    diagnosis = judge(job, *OURS)
    assert by_node(diagnosis) == [(rule, ("node3",))]
    assert diagnosis.verdict.exit_code == verdict
    assert ("node1", "node2", "node4") in [n.nodes for n in diagnosis.not_checked if n.rule == "launch-probe-failed"]


def test_the_node_that_ended_the_others_is_not_searched_for_each_of_them(launched, judge, monkeypatch):
    asked = []
    monkeypatch.setattr(started_probes, "own_failure", lambda node: asked.append(node) or own_failure(node))
    judge(launched("slurm", ("srun",), 70, node1=LOST, node2=LOST, node3=LOST, node4=BROKEN), "launchers.probe_start")
    assert len(asked) <= 8


def test_the_line_with_the_error_is_in_the_message(launched, judge):
    words = "Welcome to node3\nssh: connect to host node3 port 22: Connection timed out\nbye"
    (finding,) = judge(launched(node3=UNREACHABLE | {"words": words}), *OURS).findings
    assert "Connection timed out" in finding.message
    assert finding.fix.commands == ("ssh node3 true",)


def test_launch_failed_when_srun_starts_nothing(launched, judge):
    words = "srun: error: invalid partition specified: nope"
    lost = {f"node{n}": LOST for n in range(1, 5)}
    diagnosis = judge(launched("slurm", ("srun", "--partition=nope"), 1, words, **lost), *OURS)
    assert [(f.rule, f.scope) for f in diagnosis.findings] == [("launch-failed", "job")]
    assert "invalid partition specified: nope" in diagnosis.findings[0].message
    assert diagnosis.verdict.exit_code == 30


def test_a_refused_port_is_not_reported_where_rank_0_could_not_start(launched, judge, change):
    refused = Attempt(address="10.0.0.1", port=29500, door="master", outcome="refused")
    broken = launched(node1={"outcome": "reported", "exit_code": 70, "words": BROKEN_WORDS})
    met = change.job(change.process(broken, (2, 3, 4, 5, 6, 7), attempts=(refused,)), met=False)
    assert [f.rule for f in judge(met, *OURS, "network.master_reachability").findings] == ["launch-probe-broken"]

    alone = change.job(change.process(launched(node1=MISSING), None, attempts=(refused,)), met=False)
    diagnosis = judge(alone, *OURS, "network.master_reachability")
    assert by_node(diagnosis) == [("launch-probe-missing", ("node1",))]
    assert diagnosis.verdict.exit_code == 40

    started = change.job(change.process(launched(node2=MISSING), None, attempts=(refused,)), met=False)
    found = {f.rule for f in judge(started, "launchers.probe_start", "network.master_reachability").findings}
    assert found == {"launch-probe-missing", "net-master-refused"}


CUT_BY_SRUN = CUT | {"words": "Task launch for StepId=1.0 failed on node node3: Communication connection failure"}


@pytest.mark.parametrize(
    "loss", [{"lost": "connection closed"}, {"leader_lost": "connection closed", "leader_rank": 0}]
)
@pytest.mark.parametrize(("engine", "exit_code", "blamed"), [("slurm", 1, False), ("slurm", 0, True), ("ssh", 1, True)])
def test_a_process_that_srun_ended_with_all_others_is_not_blamed(
    launched, change, judge, loss, engine, exit_code, blamed
):
    job = change.process(launched(engine=engine, command=("srun",), exit_code=exit_code, node3=CUT_BY_SRUN), 2, **loss)
    diagnosis = judge(job, *OURS, "host.probe")
    assert [f.rule for f in diagnosis.findings] == ["launch-node-unreachable", "probe-process-lost"][: 1 + blamed]
    assert [n.ranks for n in diagnosis.not_checked if n.rule == "probe-process-lost"] == [(2, 3)] * (not blamed)
    assert diagnosis.verdict.exit_code == 20


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("slurm", "# add to srun: --nodelist=node1,node2,node3,node4 --nodes=4"),
        ("ssh", "distcheck env --hosts 'node[1-4]' --nproc 2"),
        ("mpi", "# add to mpirun: --host node1,node2,node3,node4"),
    ],
)
def test_launch_node_left_out_is_a_warning_that_names_the_good_nodes_and_excludes_the_bad_one(
    launched, judge, engine, command
):
    spare = LeftOut(name="node5", rules=("launch-probe-missing",), words="distcheck cannot be run on node5")
    job = launched(engine=engine, command=(engine,), left_out=(spare,), need=4)
    diagnosis = judge(job, *OURS)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity, finding.nodes) == ("launch-node-left-out", "warning", ("node5",))
    assert finding.fix.commands == (command,)
    assert diagnosis.verdict.exit_code == 0
    assert excluded_nodes(diagnosis.findings) == ("node5",)
