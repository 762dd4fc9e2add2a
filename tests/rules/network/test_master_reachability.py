"""MASTER_PORT and the path to it: facts in, findings out."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import A_STORE, Attempt, Bind, PortConnection, PortOwner, Resolution
from distcheck.facts.rank import Role

LOOKS = ("environment", "meeting")
OURS = ("network",)
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
    assert judge(of(*shape, launcher=launcher), "network")[:2] == ((), ())


def test_one_working_address_is_enough(of, rules, change):
    assert rules(knocked(change, of(), 1, "timeout", "unreachable", "met")) == []
    assert rules(knocked(change, of(), 1, "refused", "waiting")) == []


# -- MASTER_PORT on rank 0's host


def test_a_taken_port_names_its_process(of, change, only):
    finding, exit_code = only(bind(change, of(), "in-use", owner=OTHER))
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("net-port-in-use", (0,), ("node1",), 30)
    assert "MASTER_PORT 29500 is taken by process 4711 (python old_train.py) of eve" in finding.message
    assert finding.evidence["pid"] == 4711


@pytest.mark.parametrize(
    ("owner", "text", "commands"),
    [
        (
            {"own": True},
            "Process 4711 belongs to eve, as does this job",
            ("ssh node1 kill 4711", "export MASTER_PORT=29501"),
        ),
        ({}, "A process of eve holds node1:29500", ("export MASTER_PORT=29501",)),
        (
            {"own": True, "slurm_job": "7"},
            "Slurm job 7 holds node1:29500",
            ("export MASTER_PORT=29501", "scontrol show job 7"),
        ),
        (
            {"own": True, "slurm_job": "77"},
            "Process 4711 belongs to eve, as does this job",
            ("ssh node1 kill 4711", "export MASTER_PORT=29501"),
        ),
        ({"own": True, "container": "0123456789ab"}, "Container 0123456789ab of eve", ("export MASTER_PORT=29501",)),
    ],
)
def test_the_fix_ends_only_the_users_own_process(of, change, only, owner, text, commands):
    job = of(launcher="slurm")
    finding, _ = only(bind(change, job, "in-use", owner=msgspec.structs.replace(OTHER, **owner)))
    assert (finding.fix.text.startswith(text), finding.fix.commands) == (True, commands)
    for name, words in (("slurm_job", "in Slurm job"), ("container", "in container")):
        assert (f"{words} {owner.get(name)}" in finding.message) == (name in owner)


def test_on_one_node_the_kill_command_needs_no_ssh(of, change, only):
    finding, _ = only(bind(change, of(1, 2), "in-use", owner=msgspec.structs.replace(OTHER, own=True)))
    assert finding.fix.commands == ("kill 4711", "export MASTER_PORT=29501")


def test_a_taken_derived_port_is_a_warning_unless_exported(of, change, only):
    def found(**asked):
        job = change.environment(of(launcher="slurm"), None, MASTER_PORT=None)
        port = job.ranks[0].placement.master_port
        finding, exit_code = only(change.asked(bind(change, job, "in-use", port=port, owner=OTHER), **asked))
        assert f"MASTER_PORT {port}, which distcheck derived, is taken" in finding.message
        return finding.rule, finding.severity, exit_code

    assert found() == ("net-port-in-use", "warning", 0)
    assert found(export=True) == ("net-port-in-use", "error", 30)


def test_another_port_is_set_in_the_launchers_syntax(of, change, only):
    def fix(launcher, *shape):
        return only(bind(change, of(*shape, launcher=launcher), "in-use", owner=OTHER))[0].fix.commands

    assert fix("openmpi") == ("# add to mpirun: -x MASTER_ADDR=node1 -x MASTER_PORT=29501",)
    assert fix("distcheck", 1, 2) == ("distcheck env --nproc 2 --master-port 29501",)
    assert fix("torchrun") == ("export PET_MASTER_PORT=29501",)


def test_a_free_port_is_suggested_only_if_one_was_found(of, change, only):
    job = bind(change, of(launcher="slurm"), "in-use", owner=OTHER)
    job = change.process(job, None, free_ports=())
    assert only(job)[0].fix.commands == ("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",)
    by_hand = change.process(bind(change, of(), "in-use", owner=OTHER), None, free_ports=())
    assert only(by_hand)[0].fix.commands == ()


def test_a_long_command_is_shortened_in_the_message_and_complete_in_the_evidence(of, change, only):
    long = "python train.py " + "--option " * 30
    finding, _ = only(bind(change, of(), "in-use", owner=PortOwner(4711, long, "eve", "2026")))
    assert len(finding.message) < 200
    assert finding.evidence["command"] == long


@pytest.mark.parametrize("owner", [None, Missing(reason="hidden from this one")])
def test_a_taken_port_with_a_hidden_owner_is_reported(of, change, only, owner):
    finding, _ = only(bind(change, of(), "in-use", owner=owner))
    assert finding.rule == "net-port-in-use"
    assert finding.fix.commands == ("export MASTER_PORT=29501", "ssh node1 sudo ss -ltnp 'sport = :29500'")


@pytest.mark.parametrize(
    ("owner", "state", "words"),
    [
        (
            OTHER,
            "ESTABLISHED",
            "of process 4711 (python old_train.py) of eve",
        ),
        (
            Missing(reason="hidden from this process"),
            "ESTABLISHED",
            "of a process that is not visible (hidden from this process)",
        ),
        (
            Missing(reason="the connection has ended"),
            "TIME_WAIT",
            "that has ended; the kernel keeps the port for up to 60 s (TIME_WAIT)",
        ),
    ],
    ids=["visible", "hidden", "ended"],
)
def test_a_connection_that_holds_the_port_is_named_and_its_process_is_not_ended(of, change, judge, owner, state, words):
    if isinstance(owner, PortOwner):
        owner = msgspec.structs.replace(owner, own=True)
    job = bind(change, of(), "in-use", port=40000, owner=owner, connection=PortConnection("10.9.9.9:443", state))
    (finding,) = judge(job, "network").findings
    assert (finding.rule, finding.severity) == ("net-port-in-use", "error")
    assert finding.message == f"MASTER_PORT 40000 is taken by a connection to 10.9.9.9:443 {words}"
    assert (finding.evidence["connected_to"], finding.evidence["state"]) == ("10.9.9.9:443", state)
    assert finding.fix.text == "Use a port below 32768, which outgoing connections do not take."
    assert finding.fix.commands == ("export MASTER_PORT=29501",)


def test_a_connection_on_a_port_below_the_ephemeral_range_has_a_fix_without_that_range(of, change, only):
    ended = PortConnection("10.9.9.9:443", "TIME_WAIT")
    finding, _ = only(bind(change, of(), "in-use", owner=Missing(reason="the connection has ended"), connection=ended))
    assert finding.fix.text == "Use another port for the job."


def test_a_connection_of_a_distcheck_holds_the_port_too(of, change, rules):
    job = of(1, 2)
    own = PortOwner(job.processes[1].pid, "distcheck", "eve", "2026")
    connection = PortConnection("10.0.0.1:20123", "ESTABLISHED")
    assert rules(bind(change, job, "in-use", owner=own, connection=connection)) == ["net-port-in-use"]


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


def test_the_fix_never_ends_a_process_on_a_privileged_port(of, change, judge):
    owner = msgspec.structs.replace(OTHER, own=True)
    said = judge(bind(change, of(), "in-use", port=22, owner=owner), "network").findings
    assert [f.fix.commands for f in said] == [("export MASTER_PORT=29501",)]


def test_the_port_of_a_second_rank_0_is_reported_by_another_rule(of, change, rules):
    job = of(1, 2)
    other = job.processes[1]
    assert rules(bind(change, job, "in-use", owner=PortOwner(other.pid, "distcheck", "eve", "2026"))) == []


def test_an_owner_with_the_pid_of_a_process_on_another_node_is_named(of, change, only):
    job = of(2, 1)
    finding, _ = only(bind(change, job, "in-use", owner=PortOwner(job.processes[1].pid, "nginx", "www", "2026")))
    assert finding.rule == "net-port-in-use"


def test_the_port_of_torchruns_agent_is_healthy(of, change, rules):
    assert rules(bind(change, of(launcher="torchrun"), "agent", owner=OTHER)) == []


def test_a_port_that_cannot_be_bound_is_reported(of, change, only):
    finding, exit_code = only(bind(change, of(), "failed", error="[Errno 97] Address family not supported"))
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("net-bind-failed", (0,), ("node1",), 20)
    assert (finding.scope, finding.confirmed, finding.owner) == ("node", False, "admin")
    assert finding.message == "rank 0 cannot listen on MASTER_PORT 29500: [Errno 97] Address family not supported"


DENIED = "[Errno 13] Permission denied"


@pytest.mark.parametrize("start", [1024, 0, Missing(reason="no /proc/sys")])
def test_a_denied_unprivileged_port_is_reported(of, change, only, start):
    job = change.node(of(), 0, unprivileged_port_start=start)
    finding, exit_code = only(bind(change, job, "denied", error=DENIED), "master", "master_port")
    assert (finding.rule, finding.ranks, exit_code) == ("net-bind-failed", (0,), 20)
    assert finding.message == f"rank 0 is not permitted to listen on MASTER_PORT 29500: {DENIED}"


@pytest.mark.parametrize(("start", "port"), [(1024, 80), (40000, 29500), (Missing(reason="no /proc/sys"), 80)])
def test_a_privileged_port_is_reported_by_another_rule(of, change, only, start, port):
    job = change.node(of(), 0, unprivileged_port_start=start)
    finding, exit_code = only(bind(change, job, "denied", port=port, error=DENIED), "master", "master_port")
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-privileged", (0,), 30)


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


def test_if_the_launcher_names_rank_0s_node_the_fix_resolves_the_name_on_both(job_of, change, judge):
    step = {"SLURM_STEP_NODELIST": "node[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"}
    job = change.environment(change.job(job_of(nodes=3, launcher="slurm"), met=False), None, **step)
    job = change.process(knocked(change, job, (2, 3), "refused"), None, role=Role.ALONE)
    (finding,) = judge(change.keep(job, 2, 3), "network").findings
    assert finding.fix.commands == ("ssh node2 getent ahosts node1", "ssh node1 getent ahosts node1")


def test_an_address_is_not_looked_up(job_of, change, judge):
    job = change.job(change.environment(job_of(nodes=3), None, MASTER_ADDR="10.0.0.1"), met=False)
    job = change.process(knocked(change, job, (2, 3), "refused"), None, role=Role.ALONE)
    (finding,) = judge(change.keep(job, 2, 3), "network").findings
    assert finding.message == "ranks 2-3 (node2): connection refused at 10.0.0.1:29500; no process listens there"
    assert finding.fix.commands == ()


def test_refused_by_a_rank_0_that_does_not_listen_means_no_listener(of, change, rules):
    for fields in ({"bind": None}, {"bind": Bind(29500, "agent")}):
        assert rules(change.process(knocked(change, of(3), (1, 2), "refused"), 0, **fields)) == ["net-master-refused"]


def test_refused_to_a_rank_that_never_joined_means_no_listener(of, change, rules):
    job = change.process(knocked(change, of(3), 1, "refused"), 1, role=Role.ALONE)
    assert rules(job) == ["net-master-refused"]


def test_ranks_that_fail_at_different_addresses_are_separate_findings(of, change, judge):
    job = knocked(change, knocked(change, of(4, 1), (1, 2), "timeout"), 3, "timeout", address="10.9.0.1")
    said = judge(job, "network").findings
    assert [(f.rule, f.ranks) for f in said] == [("net-master-unreachable", (1, 2)), ("net-master-unreachable", (3,))]


def test_ipv6_addresses_are_in_brackets(of, change, only):
    finding, _ = only(knocked(change, of(), 1, "timeout", address="fd00::1"))
    assert "([fd00::1]:29500: packets are dropped, timeout)" in finding.message


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
