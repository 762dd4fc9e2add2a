"""The meeting place: MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts import Attempt, Bind, Interface, Missing, PortOwner, Resolution
from distcheck.rules.addresses import canonical, cleaned, malformed

OURS = ("environment", "ranks", "local_ranks", "master")
UNKNOWN = Missing(reason="[Errno -2] Name or service not known")


@pytest.fixture
def only(judge):
    """Return the one finding of a job and its exit code."""

    def one(job):
        diagnosis = judge(job, *OURS)
        assert [f.rule for f in diagnosis.findings] == [diagnosis.findings[0].rule]
        return diagnosis.findings[0], diagnosis.verdict.exit_code

    return one


@pytest.fixture
def silent(judge):
    """Whether nothing at all is said of a job."""
    return lambda job: judge(job, *OURS)[:2] == ((), ())


def resolves(*addresses):
    return Resolution(name="name", addresses=addresses, seconds=0.0)


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("127.0.0.1:29500", "127.0.0.1"),
        ("node1:29500", "node1"),
        ("[::1]", "::1"),
        ("[fe80::1]:29500", "fe80::1"),
        ("tcp://node1:29500", "node1"),
        ("node1 ", "node1"),
        ("node1\n", "node1"),
        ("node1,node2", "node1"),
        ("node1 node2", "node1"),
        ("node[01-02]", "node01"),
        ("10.0.0.1/24", "10.0.0.1"),
        ("$(hostname)", ""),
        ("${MASTER}", ""),
    ],
)
def test_a_badly_written_address_is_named_with_what_it_means(job_of, change, judge, address, meant):
    job = change.process(job_of(nodes=2), None, master_resolution=UNKNOWN)
    diagnosis = judge(change.environment(job, None, MASTER_ADDR=address), *OURS)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.ranks, diagnosis.verdict.exit_code) == ("env-master-addr-format", (0, 1, 2, 3), 30)
    assert cleaned(address) == meant
    assert finding.fix.commands == (f"export MASTER_ADDR={meant or 'node1'}",)


def test_a_node_list_under_slurm_is_expanded_by_scontrol(job_of, change, only):
    finding, _ = only(change.environment(job_of(nodes=2, launcher="slurm"), None, MASTER_ADDR="node[1-2]"))
    assert "scontrol show hostnames" in finding.fix.commands[0]


@pytest.mark.parametrize("address", ["node1", "node-1.cluster", "10.0.0.1", "::1", "2001:db8::1", "fe80::1%eth0"])
def test_names_and_addresses_are_well_written(address):
    assert malformed(address) == ""


def test_addresses_have_one_spelling():
    assert canonical("::ffff:10.0.0.1") == "10.0.0.1"
    assert canonical("FE80::1%eth0") == canonical("fe80:0::1")


def test_a_name_that_nobody_resolves_is_the_jobs_fault(job_of, change, only):
    job = change.environment(job_of(nodes=2), None, MASTER_ADDR="nosuchhost")
    finding, exit_code = only(change.process(job, None, master_resolution=UNKNOWN))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-unresolvable", (0, 1, 2, 3), 30)
    assert "nosuchhost" in finding.message


def test_a_name_that_one_node_does_not_resolve_names_that_node(job_of, change, only):
    finding, exit_code = only(change.process(job_of(nodes=2), (2, 3), master_resolution=UNKNOWN))
    assert (finding.rule, finding.nodes, finding.owner, exit_code) == (
        "env-master-addr-unresolvable",
        ("node2",),
        "admin",
        30,
    )


def test_a_resolver_that_fails_for_now_is_worth_a_retry(job_of, change, only):
    busy = Missing(reason="[Errno -3] Temporary failure in name resolution")
    finding, exit_code = only(change.process(job_of(nodes=2), (2, 3), master_resolution=busy))
    assert (finding.rule, exit_code) == ("env-master-addr-unresolvable", 20)


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_localhost_over_several_nodes_is_an_error(job_of, change, only, address):
    job = change.environment(job_of(nodes=2), None, MASTER_ADDR=address)
    finding, exit_code = only(change.process(job, None, master_resolution=resolves("127.0.0.1")))
    assert (finding.rule, finding.nodes, exit_code) == (
        "env-master-addr-localhost-multinode",
        ("node1", "node2"),
        30,
    )


def test_localhost_explains_why_the_other_nodes_did_not_come(job_of, change, judge):
    job = change.environment(job_of(nodes=2, launcher="slurm"), None, MASTER_ADDR="localhost")
    job = change.process(change.keep(job, 0, 1), None, master_resolution=resolves("127.0.0.1"))
    diagnosis = judge(job, *OURS)
    assert [f.rule for f in diagnosis.findings] == ["env-master-addr-localhost-multinode"]
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"]
    lone = change.job(change.keep(job, 1), met=False)
    assert [f.rule for f in judge(lone, *OURS).findings] == ["env-master-addr-localhost-multinode"]


def test_localhost_with_a_rank_missing_on_the_node_is_not_blamed(job_of, change, only):
    finding, exit_code = only(change.keep(job_of(per_node=4), 0, 1, 2))
    assert (finding.rule, exit_code) == ("env-rank-missing", 20)


def test_each_node_naming_itself_blames_those_who_are_wrong(job_of, change, only):
    job = change.environment(job_of(nodes=2), (2, 3), MASTER_ADDR="node2")
    finding, exit_code = only(change.process(job, (2, 3), master_resolution=resolves("10.0.0.2")))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-differs", (2, 3), 30)


def test_two_spellings_of_rank_zeros_host_are_no_difference(job_of, change, silent):
    job = job_of(nodes=2)
    first = job.nodes[0]
    second_network = Interface(name="ib0", address="192.168.0.1", up=True, mtu_bytes=4092)
    job = change.node(job, 0, interfaces=(*first.interfaces, second_network))
    job = change.environment(job, 3, MASTER_ADDR="node1-ib")
    job = change.process(job, 3, master_resolution=resolves("192.168.0.1"))
    job = change.environment(job, 0, MASTER_ADDR="localhost")
    assert silent(change.process(job, 0, master_resolution=resolves("127.0.0.1")))


def test_an_address_of_another_host_than_rank_zeros(job_of, change, only, silent):
    job = change.process(job_of(nodes=2), None, master_resolution=resolves("10.9.9.9"), attempts=())
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-not-rank0-host", (0,), 30)
    assert "10.9.9.9" in finding.message
    met = Attempt(address="10.9.9.9", port=29500, door="master", outcome="met")
    assert silent(change.process(job, 2, attempts=(met,)))


def test_an_address_of_another_host_explains_why_nobody_came(job_of, change, judge):
    job = change.process(change.keep(job_of(nodes=2), 0, 1), None, master_resolution=resolves("10.9.9.9"), attempts=())
    diagnosis = judge(job, *OURS)
    assert [f.rule for f in diagnosis.findings] == ["env-master-addr-not-rank0-host"]
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"]


def test_unknown_interfaces_leave_the_address_unjudged(job_of, change, judge):
    job = change.process(job_of(nodes=2), None, master_resolution=resolves("10.9.9.9"))
    diagnosis = judge(change.node(job, 0, interfaces=Missing(reason="not allowed")), *OURS)
    assert diagnosis.findings == ()
    assert [(n.rule, n.required) for n in diagnosis.not_checked] == [("env-master-addr-not-rank0-host", False)]


def test_different_ports_name_the_minority(job_of, change, only):
    finding, exit_code = only(change.environment(job_of(per_node=(2, 1)), 2, MASTER_PORT="29501"))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-differs", (2,), 30)
    assert finding.evidence == {"29500": "ranks 0-1 (node1)", "29501": "rank 2 (node2 pid 102)"}


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_number_that_is_no_port(job_of, change, only, port):
    finding, exit_code = only(change.environment(job_of(), None, MASTER_PORT=port))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-range", (0, 1), 30)


def test_port_zero_works_only_alone(job_of, change, only, silent):
    finding, exit_code = only(change.environment(job_of(), None, MASTER_PORT="0"))
    assert (finding.rule, exit_code) == ("env-master-port-zero", 30)
    assert silent(change.environment(job_of(per_node=1), None, MASTER_PORT="0"))


def test_a_privileged_port_is_an_error_only_when_it_was_denied(job_of, change, only, silent):
    job = change.environment(job_of(), None, MASTER_PORT="80")
    finding, exit_code = only(change.process(job, 0, bind=Bind(port=80, outcome="denied", error="EACCES")))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-port-privileged", (0,), 30)
    assert silent(change.process(job, 0, bind=Bind(port=80, outcome="bound")))


@pytest.mark.parametrize(("launcher", "said"), [("by hand", True), ("slurm", True), ("torchrun", False)])
def test_an_ephemeral_port_is_worth_knowing_when_the_user_chose_it(job_of, change, judge, launcher, said):
    diagnosis = judge(change.environment(job_of(launcher=launcher), None, MASTER_PORT="40000"), *OURS)
    assert [(f.rule, f.severity) for f in diagnosis.findings] == [("env-master-port-ephemeral", "info")] * said
    assert diagnosis.verdict.exit_code == 0


@pytest.mark.parametrize(
    ("banner", "who", "got"),
    [("HTTP/1.1 400 Bad Request", "web server", 1347703880), ("SSH-2.0-OpenSSH_9.6", "SSH server", 759714643)],
)
def test_another_program_on_the_port_is_named_by_its_first_words(job_of, change, only, silent, banner, who, got):
    foreign = Attempt(address="10.0.0.1", port=29500, door="master", outcome="foreign", detail=banner)
    job = change.process(job_of(nodes=2), 3, attempts=(foreign,))
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("env-port-speaks-http", (3,), 30)
    assert who in finding.message
    assert finding.evidence["torch_reads"] == got
    owner = PortOwner(pid=7, command="nginx", user="www", started="now")
    assert silent(change.process(job, 0, bind=Bind(port=29500, outcome="in-use", owner=owner)))


def test_findings_can_be_written_as_json(job_of, change, judge):
    job = change.environment(job_of(nodes=2), 3, RANK="1", MASTER_PORT="1")
    assert msgspec.json.encode(judge(job, *OURS).findings)
