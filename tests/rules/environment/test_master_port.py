"""Where the ranks meet, by port: MASTER_PORT."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

from distcheck.facts.network import Attempt, Bind, PortOwner, Resolution


def test_different_ports_name_the_minority(job_of, change, only):
    finding, exit_code = only(change.environment(job_of(per_node=(2, 1)), 2, MASTER_PORT="29501"))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-differs", (2,), 30)
    assert finding.evidence == {"29500": "ranks 0-1 (node1)", "29501": "rank 2 (node2 pid 102)"}


@pytest.mark.parametrize("launcher", ["by hand", "slurm"])
@pytest.mark.parametrize("odd", [0, 3])
def test_the_suggested_port_is_the_one_of_the_other_ranks(job_of, change, only, launcher, odd):
    job = change.environment(job_of(nodes=2, launcher=launcher), None, MASTER_PORT="29511")
    finding, _ = only(change.environment(job, odd, MASTER_PORT="29500"))
    assert (finding.ranks, finding.fix.commands) == ((odd,), ("export MASTER_PORT=29511",))
    tie, _ = only(change.environment(job_of(launcher=launcher), 0, MASTER_PORT="29511"))
    assert tie.fix.commands == ("export MASTER_PORT=29511",), "rank 0's"


@pytest.mark.parametrize("launcher", ["by hand", "slurm", "openmpi"])
def test_a_missing_or_invalid_port_gets_the_port_of_the_other_ranks(job_of, change, judge, launcher):
    job = change.environment(job_of(nodes=2, launcher=launcher), None, MASTER_PORT="29511")
    for value in (None, "x"):
        told = judge(change.environment(job, 3, MASTER_PORT=value), *CONTRACT).findings
        commands = [c for f in told for c in f.fix.commands if "MASTER_PORT" in c]
        assert commands, told
        assert all("MASTER_PORT=29511" in c for c in commands), commands


@pytest.mark.parametrize(
    ("port", "rule", "exit_code"),
    [
        ("70000", "env-master-port-range", 30),
        ("-1", "env-master-port-range", 30),
        ("0", "env-master-port-zero", 30),
        ("40000", "env-master-port-ephemeral", 0),
    ],
)
def test_a_port_that_is_wrong_by_itself_is_replaced(job_of, change, only, port, rule, exit_code):
    finding, code = only(change.environment(job_of(), None, MASTER_PORT=port))
    assert (finding.rule, code) == (rule, exit_code)
    assert finding.fix.commands[0] == "export MASTER_PORT=29501"


def test_a_port_is_silent_in_a_world_of_one_by_torchruns_choice_or_if_reserved(job_of, change, silent):
    assert silent(change.environment(job_of(per_node=1), None, MASTER_PORT="0"))
    assert silent(change.environment(job_of(launcher="torchrun"), None, MASTER_PORT="40000"))
    job = change.environment(job_of(launcher="slurm"), None, MASTER_PORT="40000")
    for reserved in (((40000, 40000),), ((8080, 8080), (39000, 41000))):
        assert silent(change.node(job, 0, reserved_ports=reserved))


def test_a_privileged_port_is_an_error_only_when_it_was_denied(job_of, change, only, silent):
    job = change.environment(job_of(), None, MASTER_PORT="80")
    finding, exit_code = only(change.process(job, 0, bind=Bind(port=80, outcome="denied", error="EACCES")))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-privileged", (0,), 30)
    assert silent(change.process(job, 0, bind=Bind(port=80, outcome="bound")))


@pytest.mark.parametrize(
    ("banner", "who", "got"),
    [("HTTP/1.1 400 Bad Request", "web server", 1347703880), ("SSH-2.0-OpenSSH_9.6", "SSH server", 759714643)],
)
def test_another_program_on_the_port_is_named_by_its_first_bytes(job_of, change, only, silent, banner, who, got):
    foreign = Attempt(address="10.0.0.1", port=29500, door="master", outcome="foreign", detail=banner)
    job = change.process(job_of(nodes=2), 3, attempts=(foreign,))
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("env-port-speaks-http", (3,), 30)
    assert who in finding.message
    assert finding.evidence["torch_reads"] == got
    owner = PortOwner(pid=7, command="nginx", user="www", started="now")
    assert silent(change.process(job, 0, bind=Bind(port=29500, outcome="in-use", owner=owner)))


def test_a_program_on_another_host_or_port_than_rank_0s_is_not_reported_beside_its_cause(job_of, change, only):
    foreign = Attempt(address="10.0.0.9", port=29500, door="master", outcome="foreign", detail="HTTP/1.1 400")
    job = change.process(job_of(nodes=2), None, attempts=(foreign,))
    resolution = Resolution(name="10.0.0.9", addresses=("10.0.0.9",), seconds=0.0)
    job = change.process(change.environment(job, None, MASTER_ADDR="10.0.0.9"), None, master_resolution=resolution)
    assert only(job)[0].rule == "env-master-addr-not-rank0-host"
    job = change.environment(change.process(job_of(nodes=2), 3, attempts=(foreign,)), 3, MASTER_PORT="8888")
    assert only(job)[0].rule == "env-master-port-differs"
