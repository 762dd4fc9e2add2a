"""MASTER_PORT and the path to it: facts in, findings out."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import A_STORE, Attempt, Bind, PortConnection, PortOwner, Resolution
from distcheck.facts.rank import Role

LOOKS = ("environment", "meeting")
OURS = ("network.master_reachability",)
OTHER = PortOwner(pid=4711, command="python old_train.py", user="eve", started="2026-01-01T00:00:00+00:00")


@pytest.fixture
def of(job_of):
    """Build a healthy job."""
    return lambda nodes=2, per_node=1, **more: job_of(nodes, per_node, looks=LOOKS, **more)


def bind(
    change, job, outcome, where=0, port=29500, owner=None, error="[Errno 98] Address already in use", connection=None
):
    return change.process(job, where, bind=Bind(port, outcome, error, owner, connection))


def knocked(change, job, where, *outcomes, detail="", door="master", address="10.0.0.1"):
    """Return the job with these outcomes of the ranks' attempts at rank 0."""
    attempts = tuple(
        Attempt(f"{address[:-1]}{n}", 29500, door, outcome, 7, detail) for n, outcome in enumerate(outcomes, start=1)
    )
    return change.process(job, where, attempts=attempts)


# -- healthy


@pytest.mark.parametrize("launcher", ["by hand", "torchrun", "slurm", "openmpi", "distcheck"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 1), (4, 2)])
def test_a_healthy_job_is_silent(of, judge, launcher, shape):
    assert judge(of(*shape, launcher=launcher), "network.master_reachability")[:2] == ((), ())


def test_one_working_address_is_enough(of, rules, change):
    assert rules(knocked(change, of(), 1, "timeout", "unreachable", "met")) == []
    assert rules(knocked(change, of(), 1, "refused", "waiting")) == []


# -- MASTER_PORT on rank 0's host


PROCESS = "process 4711 (python old_train.py) of eve"
HIDDEN, ENDED = Missing(reason="hidden from this one"), Missing(reason="the connection has ended")
ANOTHER = "export MASTER_PORT=29501"
LOOK = "ssh node1 sudo ss -ltnp 'sport = :29500'"
LONG = "python train.py " + "--option " * 30


def taken(message, *commands, owner=OTHER, launcher="by hand", shape=(2, 1), free=True, port=29500, held=None, **own):
    """Return a taken port of rank 0 (`own`: fields of its owner; `held`: a connection's state), and its finding."""
    owner = msgspec.structs.replace(owner, **own) if isinstance(owner, PortOwner) else owner
    connection = PortConnection("10.9.9.9:443", held) if held else None
    return message, commands, owner, launcher, shape, free, port, connection


@pytest.mark.parametrize(
    ("message", "commands", "owner", "launcher", "shape", "free", "port", "connection"),
    [
        taken(PROCESS, ANOTHER),
        taken(PROCESS, "ssh node1 kill 4711", ANOTHER, launcher="slurm", own=True),
        taken(PROCESS, "kill 4711", ANOTHER, own=True, shape=(1, 2)),
        taken(f"{PROCESS} in Slurm job 7", "scontrol show job 7", ANOTHER, launcher="slurm", own=True, slurm_job="7"),
        taken(f"{PROCESS} in Slurm job 77", "ssh node1 kill 4711", ANOTHER, launcher="slurm", own=True, slurm_job="77"),
        taken(f"{PROCESS} in container 0123456789ab", ANOTHER, own=True, container="0123456789ab"),
        taken(PROCESS, "# add to mpirun: -x MASTER_ADDR=node1 -x MASTER_PORT=29501", launcher="openmpi"),
        taken(PROCESS, "distcheck env --nproc 2 --master-port 29501", launcher="distcheck", shape=(1, 2)),
        taken(PROCESS, "export PET_MASTER_PORT=29501", launcher="torchrun"),
        taken(PROCESS, "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))", launcher="slurm", free=False),
        taken(PROCESS, free=False),
        taken(PROCESS, ANOTHER, own=True, port=22),
        taken("process 101 (nginx) of www", ANOTHER,  # the pid of a process on another node
              owner=PortOwner(101, "nginx", "www", "2026")),
        taken("process 4711 (python train.py --option", ANOTHER, command=LONG),
        taken("a process that is not visible (hidden from this one)", LOOK, ANOTHER, owner=HIDDEN),
        taken("a process that is not visible (unknown)", LOOK, ANOTHER, owner=None),
        taken(f"a connection to 10.9.9.9:443 of {PROCESS}", ANOTHER, own=True, port=40000, held="ESTABLISHED"),
        taken("a connection to 10.9.9.9:443 of a process that is not visible (hidden from this one)", ANOTHER,
              owner=HIDDEN, port=40000, held="ESTABLISHED"),
        taken("a connection to 10.9.9.9:443 that has ended; the kernel keeps the port for up to 60 s (TIME_WAIT)",
              ANOTHER, owner=ENDED, port=40000, held="TIME_WAIT"),
    ],
)  # fmt: skip
def test_a_taken_port_names_what_holds_it_and_the_fix_ends_only_the_users_own_process(
    of, change, judge, message, commands, owner, launcher, shape, free, port, connection
):
    job = bind(change, of(*shape, launcher=launcher), "in-use", port=port, owner=owner, connection=connection)
    (finding,) = judge(
        job if free else change.process(job, None, free_ports=()), "network.master_reachability"
    ).findings
    assert (finding.rule, finding.severity, finding.nodes) == ("net-port-in-use", "error", ("node1",))
    assert finding.message.startswith(f"MASTER_PORT {port} is taken by {message}")
    assert finding.fix.commands == commands
    assert len(finding.message) < 200
    if isinstance(owner, PortOwner):
        assert (finding.evidence["pid"], finding.evidence["command"]) == (owner.pid, owner.command)
    if connection:
        assert (finding.evidence["connected_to"], finding.evidence["state"]) == ("10.9.9.9:443", connection.state)


def test_a_taken_derived_port_is_a_warning_unless_exported(of, change, only):
    def found(**asked):
        job = change.environment(of(launcher="slurm"), None, MASTER_PORT=None)
        port = job.ranks[0].placement.master_port
        finding, exit_code = only(change.asked(bind(change, job, "in-use", port=port, owner=OTHER), **asked))
        assert f"MASTER_PORT {port}, which distcheck derived, is taken" in finding.message
        return finding.rule, finding.severity, exit_code

    assert found() == ("net-port-in-use", "warning", 0)
    assert found(export=True) == ("net-port-in-use", "error", 30)


@pytest.mark.parametrize(
    ("outcome", "detail", "words"),
    [
        ("foreign", "HTTP/1.0 400 Bad request", "; it answers the other ranks with 'HTTP/1.0 400 Bad request'"),
        ("silent", A_STORE, f"; it is {A_STORE}"),
        ("silent", "said nothing for 3 s", "; it does not answer the other ranks, so they would hang"),
        ("closed", "", "; it closes the connections of the other ranks"),
        ("stranger", "of another job", "; it is the roll call of another job"),
        ("timeout", "", ""),
    ],
)
def test_the_message_says_how_the_program_on_a_taken_port_answers(of, change, only, outcome, detail, words):
    job = bind(change, of(3, 1), "in-use", owner=OTHER)
    finding, exit_code = only(knocked(change, job, (1, 2), outcome, detail=detail))
    assert (finding.rule, finding.ranks, exit_code) == ("net-port-in-use", (0,), 30)
    assert finding.message.endswith(f"(python old_train.py) of eve{words}")


def test_a_second_rank_0_holds_the_port_by_listening_only_for_another_rule(of, change, rules):
    job = of(1, 2)
    own = PortOwner(job.processes[1].pid, "distcheck", "eve", "2026")
    assert rules(bind(change, job, "in-use", owner=own)) == []
    connection = PortConnection("10.0.0.1:20123", "ESTABLISHED")
    assert rules(bind(change, job, "in-use", owner=own, connection=connection)) == ["net-port-in-use"]


def test_the_port_of_torchruns_agent_is_healthy(of, change, rules):
    assert rules(bind(change, of(launcher="torchrun"), "agent", owner=OTHER)) == []


def test_a_port_that_cannot_be_bound_is_reported(of, change, only):
    finding, exit_code = only(bind(change, of(), "failed", error="[Errno 97] Address family not supported"))
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("net-bind-failed", (0,), ("node1",), 20)
    assert (finding.scope, finding.confirmed, finding.owner) == ("node", False, "admin")
    assert finding.message == "rank 0 cannot listen on MASTER_PORT 29500: [Errno 97] Address family not supported"


DENIED = "[Errno 13] Permission denied"


@pytest.mark.parametrize(
    ("start", "port", "rule"),
    [
        *((start, 29500, "net-bind-failed") for start in (1024, 0, Missing(reason="no /proc/sys"))),
        (1024, 80, "env-master-port-privileged"),
        (40000, 29500, "env-master-port-privileged"),
        (Missing(reason="no /proc/sys"), 80, "env-master-port-privileged"),
    ],
)
def test_a_denied_port_is_reported_by_whether_it_is_privileged(of, change, only, start, port, rule):
    job = bind(change, change.node(of(), 0, unprivileged_port_start=start), "denied", port=port, error=DENIED)
    finding, exit_code = only(job, "environment.master_addr", "environment.master_port")
    assert (finding.rule, finding.ranks, exit_code) == (rule, (0,), 30 if rule.startswith("env") else 20)
    assert rule.startswith("env") or finding.message.endswith(f"not permitted to listen on MASTER_PORT 29500: {DENIED}")


# -- the path to MASTER_ADDR:MASTER_PORT


def test_another_jobs_roll_call_is_one_finding(of, change, only):
    job = knocked(change, of(4, 2), range(2, 8), "stranger", detail="a roll call of another job")
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("net-port-in-use-by-peer-job", tuple(range(2, 8)), 30)
    assert finding.message == "another job answers at 10.0.0.1:29500: a roll call of another job"


WAYS = [
    ("net-master-unreachable", "timeout", "admin", 20),
    ("net-master-unreachable", "unreachable", "admin", 20),
    ("net-master-unreachable", "refused", "admin", 20),
    ("net-master-silent", "silent", "user", 30),
    ("net-master-silent", "closed", "user", 30),
]


@pytest.mark.parametrize(("rule", "outcome", "owner", "exit_code"), WAYS)
def test_ranks_that_cannot_reach_rank_0_are_named(of, change, only, rule, outcome, owner, exit_code):
    job = knocked(change, of(3, 2), (2, 4, 5), outcome, detail="as the system says")
    finding, code = only(job)
    assert (finding.rule, finding.ranks, finding.nodes) == (rule, (2, 4, 5), ("node2", "node3"))
    assert (finding.owner, code) == (owner, exit_code)
    assert "10.0.0.1:29500" in finding.message
    assert finding.evidence == {"10.0.0.1:29500": f"{outcome} after 7 tries: as the system says"}


def test_refused_by_a_listening_rank_0_that_was_reached_elsewhere_is_a_firewall(of, change, only):
    job = knocked(change, of(3, 2), (2, 3), "refused", detail="[Errno 111] Connection refused")
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("net-master-unreachable", (2, 3), ("node2",), 20)
    assert finding.message == (
        "ranks 2-3 (node2) cannot reach rank 0 at MASTER_ADDR node1 (10.0.0.1:29500: rejected although rank 0 listens, "
        "[Errno 111] Connection refused)"
    )
    assert finding.fix.commands == ("sudo firewall-cmd --add-port=29500/tcp  # on node1",)


def test_the_message_names_the_outcome_by_address(of, change, only):
    finding, _ = only(knocked(change, of(), 1, "timeout", "unreachable", detail="as the system says"))
    assert finding.message.endswith(
        "(10.0.0.1:29500: packets are dropped, as the system says and "
        "10.0.0.2:29500: rejected, or no route, as the system says)"
    )
    finding, _ = only(knocked(change, of(), 1, "timeout", address="fd00::1"))
    assert "([fd00::1]:29500: packets are dropped, timeout)" in finding.message


def test_refused_by_an_unreached_rank_0_means_no_listener(of, change, only):
    """A rank that never met rank 0 reports on its own."""
    job = change.process(knocked(change, of(3, 2), (2, 3, 4), "refused"), None, role=Role.ALONE)
    finding, exit_code = only(change.job(change.keep(job, 2, 3, 4), met=False))
    assert (finding.rule, finding.ranks, finding.nodes) == ("net-master-refused", (2, 3, 4), ("node2", "node3"))
    assert (finding.owner, finding.scope, exit_code) == ("unknown", "link", 20)
    assert (
        finding.message
        == "ranks 2-4 (node2 and node3): connection refused at node1 (10.0.0.1:29500); no process listens there"
    )
    assert finding.fix.commands == ("ssh node2 getent ahosts node1",)


def test_refused_without_a_rank_0_that_listens_or_was_met_means_no_listener(of, change, rules):
    refused = knocked(change, of(3), (1, 2), "refused")
    for job in (
        change.process(refused, 0, bind=None),
        change.process(refused, 0, bind=Bind(29500, "agent")),
        change.process(refused, (1, 2), role=Role.ALONE),
    ):
        assert rules(job) == ["net-master-refused"]


def test_if_the_launcher_names_rank_0s_node_the_fix_resolves_the_name_on_both(job_of, change, judge):
    step = {"SLURM_STEP_NODELIST": "node[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"}
    job = change.environment(change.job(job_of(nodes=3, launcher="slurm"), met=False), None, **step)
    job = change.process(knocked(change, job, (2, 3), "refused"), None, role=Role.ALONE)
    (finding,) = judge(change.keep(job, 2, 3), "network.master_reachability").findings
    assert finding.fix.commands == ("ssh node2 getent ahosts node1", "ssh node1 getent ahosts node1")


def test_ranks_that_fail_at_different_addresses_are_separate_findings(of, change, judge):
    job = knocked(change, knocked(change, of(4, 1), (1, 2), "timeout"), 3, "timeout", address="10.9.0.1")
    said = judge(job, "network.master_reachability").findings
    assert [(f.rule, f.ranks) for f in said] == [("net-master-unreachable", (1, 2)), ("net-master-unreachable", (3,))]


@pytest.mark.parametrize(("rule", "outcome", "owner", "exit_code"), WAYS)
@pytest.mark.parametrize("bound", ["in-use", "denied", "failed"])
def test_a_failed_binding_of_rank_0_explains_unreachability(of, change, rules, rule, outcome, owner, exit_code, bound):
    job = bind(change, knocked(change, of(3, 1), (1, 2), outcome), bound, owner=OTHER if bound == "in-use" else None)
    assert rules(job) == ["net-port-in-use" if bound == "in-use" else "net-bind-failed"]


@pytest.mark.parametrize(("rule", "outcome", "owner", "exit_code"), WAYS)
def test_a_missing_rank_0_explains_unreachability(of, change, rules, rule, outcome, owner, exit_code):
    job = change.keep(knocked(change, of(3, 1), (1, 2), outcome), 1, 2)
    assert rules(job) == []
    alone = change.process(change.job(job, met=False), None, role=Role.ALONE)
    assert rules(alone) == ["net-master-refused" if outcome == "refused" else rule]


@pytest.mark.parametrize(("rule", "outcome", "owner", "exit_code"), WAYS)
@pytest.mark.parametrize("wrong", [{"MASTER_PORT": "29501"}, {"MASTER_ADDR": "node2"}])
def test_ranks_with_another_master_are_reported_by_another_rule(
    of, change, rules, rule, outcome, owner, exit_code, wrong
):
    job = knocked(change, change.environment(of(3, 1), 2, **wrong), (1, 2), outcome)
    assert rules(job) == [rule]
    assert rules(knocked(change, change.environment(of(3, 1), 2, **wrong), 2, outcome)) == []


def test_a_master_addr_that_is_every_node_itself_is_reported_by_another_rule(of, change, rules):
    job = knocked(change, of(2, 1), 1, "refused", address="127.0.0.1")
    assert rules(change.environment(job, None, MASTER_ADDR="localhost")) == []


def test_side_ports_do_not_count(of, change, rules):
    assert rules(knocked(change, of(), 1, "timeout", door="side")) == []


# -- together with other rules


def test_a_master_addr_of_another_host_is_one_finding(job_of, change, judge):
    job = change.process(
        job_of(1, 1, looks=LOOKS),
        0,
        bind=Bind(port=29500, outcome="bound"),
        master_resolution=Resolution(name="node9", addresses=("10.0.0.9",), seconds=0.001),
        attempts=(Attempt(address="10.0.0.9", port=29500, door="master", outcome="refused"),),
    )
    job = change.environment(job, 0, MASTER_ADDR="node9")
    assert [f.rule for f in judge(job).findings] == ["env-master-addr-not-rank0-host"]
