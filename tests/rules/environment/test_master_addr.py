"""Where the ranks meet, by name: MASTER_ADDR."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Interface, Resolution
from distcheck.facts.rank import Role
from distcheck.probe.network import unanswered
from distcheck.rules.job.addresses import canonical, cleaned, malformed
from distcheck.rules.job.remedies import FIND_HOST, SLURM_MASTER_ADDR
from distcheck.selection.near_names import near_names

UNKNOWN = Missing(reason="[Errno -2] Name or service not known")


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
        ("a" * 5000, ""),
    ],
)
def test_a_malformed_address_is_reported_with_the_likely_host(job_of, change, only, address, meant):
    job = change.process(job_of(nodes=2), None, master_resolution=UNKNOWN)
    finding, exit_code = only(change.environment(job, None, MASTER_ADDR=address))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-format", (0, 1, 2, 3), 30)
    assert len(finding.message) < 250
    assert cleaned(address) == meant
    assert finding.fix.commands == (f"export MASTER_ADDR={meant or 'node1'}",)


def test_a_node_list_under_slurm_is_expanded_by_scontrol(job_of, change, only):
    finding, _ = only(change.environment(job_of(nodes=2, launcher="slurm"), None, MASTER_ADDR="node[1-2]"))
    assert "scontrol show hostnames" in finding.fix.commands[0]


@pytest.mark.parametrize("address", ["node1", "node-1.cluster", "10.0.0.1", "::1", "2001:db8::1", "fe80::1%eth0"])
def test_valid_names_and_addresses_are_silent(address):
    assert malformed(address) == ""


def test_addresses_have_one_spelling():
    assert canonical("::ffff:10.0.0.1") == "10.0.0.1"
    assert canonical("FE80::1%eth0") == canonical("fe80:0::1")


@pytest.mark.parametrize(
    ("address", "hosts", "meant"),
    [
        ("lcoalhost", ("localhost",), "localhost"),
        ("nod1", (), "node1"),
        ("node1.wrong.org", (), "node1"),
        ("x9", (), ""),
    ],
)
def test_a_misspelt_name_is_corrected(job_of, change, only, address, hosts, meant):
    job = change.environment(job_of(nodes=2), None, MASTER_ADDR=address)
    finding, _ = only(change.process(job, None, master_resolution=UNKNOWN, near_names=hosts))
    assert finding.message.endswith(f"; did you mean {meant}?" if meant else "not known)")
    expected = (f"export MASTER_ADDR={meant}",) if meant else ("export MASTER_ADDR=node1", "getent hosts x9")
    assert finding.fix.commands == expected


@pytest.mark.parametrize(("launcher", "command"), [("by hand", FIND_HOST), ("slurm", SLURM_MASTER_ADDR)])
def test_where_the_host_of_rank_0_is_unknown_the_fix_finds_it(job_of, change, judge, launcher, command):
    job = change.environment(change.keep(job_of(nodes=2, launcher=launcher), 3), None, MASTER_ADDR="nosuchhost")
    job = change.job(change.process(job, None, master_resolution=UNKNOWN), met=False)
    assert judge(job, *CONTRACT).findings[0].fix.commands == (command, "getent hosts nosuchhost")


def test_a_launcher_that_hands_over_variables_gets_no_host_that_nobody_knows(job_of, change, judge):
    job = change.environment(change.keep(job_of(nodes=2, launcher="openmpi"), 3), None, MASTER_ADDR=None)
    findings = judge(change.job(job, met=False), *CONTRACT).findings
    assert findings[0].fix.commands[-2:] == (FIND_HOST, "# add to mpirun: -x MASTER_PORT=29500")


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("lcoalhost", ("localhost", "vm"), ("localhost",)),
        ("node12", ("node11", "node1", "node2"), ()),
        ("node1", ("node01", "nide1"), ("node01", "nide1")),
        ("Node1.cluster.lan", ("node1",), ("node1",)),
        ("", ("a",), ()),
    ],
)
def test_names_are_alike_if_they_differ_in_a_letter_and_not_in_a_number(name, known, near):
    assert near_names(name, known) == near


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
BUSY = Missing("[Errno -3] Temporary failure in name resolution")


@pytest.mark.parametrize(
    ("where", "why", "variables", "owner", "exit_code"),
    [
        (None, UNKNOWN, {"MASTER_ADDR": "nosuchhost"}, "user", 30),
        ((2, 3), UNKNOWN, {}, "admin", 30),
        ((2, 3), BUSY, {}, "admin", 20),
        ((2, 3), unanswered(5.0), {}, "admin", 20),
        ((2, 3), UNKNOWN, POD, "admin", 20),
    ],
    ids=["on no node", "on one node only", "a failure for now", "no answer", "a pod that does not run yet"],
)
def test_a_name_that_does_not_resolve_is_named_where_it_does_not(
    job_of, change, only, where, why, variables, owner, exit_code
):
    job = change.environment(job_of(nodes=2), None, **variables)
    finding, code = only(change.process(job, where, master_resolution=why))
    assert (finding.rule, finding.owner, code) == ("env-master-addr-unresolvable", owner, exit_code)
    assert finding.ranks == (where or (0, 1, 2, 3))
    assert f"the name {variables.get('MASTER_ADDR', 'node1')} in MASTER_ADDR does not resolve" in finding.message


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_localhost_over_several_nodes_is_an_error(job_of, change, only, address):
    job = change.environment(job_of(nodes=2), None, MASTER_ADDR=address)
    finding, exit_code = only(change.process(job, None, master_resolution=resolves("127.0.0.1")))
    assert (finding.rule, exit_code) == ("env-master-addr-localhost-multinode", 30)
    assert finding.nodes == ("node1", "node2")


def test_localhost_explains_missing_nodes(job_of, change, judge):
    job = change.environment(job_of(nodes=2, launcher="slurm"), None, MASTER_ADDR="localhost")
    job = change.process(change.keep(job, 0, 1), None, master_resolution=resolves("127.0.0.1"))
    diagnosis = judge(job, *CONTRACT)
    assert [f.rule for f in diagnosis.findings] == ["env-master-addr-localhost-multinode"]
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"]
    lone = change.job(change.keep(job, 1), met=False)
    assert [f.rule for f in judge(lone, *CONTRACT).findings] == ["env-master-addr-localhost-multinode"]


def test_localhost_with_a_rank_missing_on_the_node_is_not_blamed(job_of, change, only):
    finding, exit_code = only(change.keep(job_of(per_node=4), 0, 1, 2))
    assert (finding.rule, exit_code) == ("env-rank-missing", 20)


def test_each_node_naming_itself_blames_the_wrong_nodes(job_of, change, only):
    job = change.environment(job_of(nodes=2), (2, 3), MASTER_ADDR="node2")
    finding, exit_code = only(change.process(job, (2, 3), master_resolution=resolves("10.0.0.2")))
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-differs", (2, 3), 30)


@pytest.fixture
def two_networks(job_of, change):
    """Two nodes; node1 has a second network, at which the ranks of `change` may look for it."""
    job = job_of(nodes=2)
    second_network = Interface(name="ib0", address="192.168.0.1", up=True, mtu_bytes=4092)
    return change.node(job, 0, interfaces=(*job.nodes[0].interfaces, second_network))


@pytest.mark.parametrize(
    ("rank", "spelt", "address"),
    [
        (0, "localhost", "127.0.0.1"),
        (0, "127.0.1.1", "127.0.1.1"),
        (3, "10.0.0.1", "10.0.0.1"),
        (3, "node1.cluster.example", "10.0.0.1"),
        (3, "node1-ib", "192.168.0.1"),
    ],
)
def test_two_spellings_and_addresses_of_rank_zeros_host_are_silent(two_networks, change, silent, rank, spelt, address):
    job = change.environment(two_networks, rank, MASTER_ADDR=spelt)
    assert silent(change.process(job, rank, master_resolution=resolves(address)))


@pytest.mark.parametrize(("spelt", "address"), [("192.168.1.5", "192.168.1.5"), ("service", "10.96.0.7")])
def test_a_forwarded_address_at_which_rank_0_answers_is_silent(two_networks, change, only, silent, spelt, address):
    job = change.process(change.environment(two_networks, 3, MASTER_ADDR=spelt), 3, master_resolution=resolves(address))
    finding, exit_code = only(change.process(job, 3, attempts=()))
    assert (finding.rule, finding.severity, exit_code) == ("env-master-addr-differs", "error", 30)
    met = Attempt(address=address, port=29500, door="master", outcome="met")
    assert silent(change.process(job, 3, attempts=(met,)))


def test_an_address_of_another_host_than_rank_zeros(job_of, change, only, silent):
    job = change.process(job_of(nodes=2), None, master_resolution=resolves("10.9.9.9"), attempts=())
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, exit_code) == ("env-master-addr-not-rank0-host", (0,), 30)
    assert "10.9.9.9" in finding.message
    met = Attempt(address="10.9.9.9", port=29500, door="master", outcome="met")
    assert silent(change.process(job, 2, attempts=(met,)))


def test_an_address_of_another_host_explains_missing_ranks(job_of, change, judge):
    job = change.process(change.keep(job_of(nodes=2), 0, 1), None, master_resolution=resolves("10.9.9.9"), attempts=())
    diagnosis = judge(job, *CONTRACT)
    assert [f.rule for f in diagnosis.findings] == ["env-master-addr-not-rank0-host"]
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"]


@pytest.fixture
def step(job_of, change):
    """Four tasks on two nodes, of which rank 0 is on the second: the step's nodes are in an order of its own."""
    job = job_of(nodes=2, launcher="slurm")
    job = change.node(change.node(job, 0, name="node2"), 1, name="node1")
    return change.environment(job, None, SLURM_STEP_NODELIST="node2,node1", SLURM_STEP_TASKS_PER_NODE="2(x2)")


def test_a_master_addr_of_another_node_of_the_step_explains_the_missing_rank_0(step, change, judge):
    job = change.process(change.keep(step, 2, 3), None, master_resolution=resolves("10.0.0.2"), attempts=())
    job = change.process(job, (0, 1), role=Role.LEADER)  # in rank 0's stead
    diagnosis = judge(job, *CONTRACT)
    (found,) = diagnosis.findings
    assert (found.rule, found.ranks, diagnosis.verdict.exit_code) == ("env-master-addr-not-rank0-host", (2, 3), 30)
    assert found.message == "ranks 2-3 (node1): MASTER_ADDR is node1; rank 0 belongs to node2"
    assert found.fix.commands == ("export MASTER_ADDR=node2",)
    assert [(n.rule, n.ranks) for n in diagnosis.not_checked] == [("env-rank-missing", (0, 1))]


def test_a_master_addr_of_the_right_node_leaves_rank_0_missing(step, change, only):
    job = change.process(change.keep(step, 2, 3), None, master_resolution=resolves("10.0.0.1"), attempts=())
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("env-rank-missing", (0, 1), ("node2",), 20)


def test_unknown_interfaces_leave_the_address_unjudged(job_of, change, judge):
    job = change.process(job_of(nodes=2), None, master_resolution=resolves("10.9.9.9"))
    diagnosis = judge(change.node(job, 0, interfaces=Missing(reason="not allowed")), *CONTRACT)
    assert diagnosis.findings == ()
    assert [(n.rule, n.required) for n in diagnosis.not_checked] == [("env-master-addr-not-rank0-host", False)]
