"""What the launch commands of a job's nodes state together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.facts.network import NetworkFacts, Resolution
from distcheck.rules.finding import Fix
from distcheck.rules.job.launch_words import in_launch_words

OURS = ("launchers.launch_command",)


@pytest.fixture
def stated(job_of, change):
    """Build a job of two nodes with two ranks each, whose commands state this; one for each node, or one for both."""

    def make(*each: Stated, **asked):
        job = job_of(2, 2, "distcheck", told="placement from torchrun's arguments: …", **asked)
        for node, said in enumerate(each if len(each) > 1 else each * 2):
            job = change.process(job, 2 * node, launch=said)
        return job

    return make


def static(node_rank: int, address: str = "node1") -> Stated:
    return Stated("torchrun", "2", 2, 0, node_rank, address, 29500)


ENDPOINT = Stated("torchrun", "2", 2, 0, None, "10.0.0.1", 29400, "none")


def test_nodes_that_state_their_own_numbers_are_silent(stated, silent):
    assert silent(stated(static(0), static(1)))


def test_one_node_rank_on_two_nodes_names_both_and_the_number_that_is_free(stated, only):
    finding, code = only(stated(static(0), static(0)))
    assert (finding.rule, finding.nodes, finding.ranks, code) == (
        "command-node-rank-duplicate", ("node1", "node2"), (0, 1, 2, 3), 30
    )  # fmt: skip
    assert "are both node 0: torchrun's --node-rank is 0 on each" in finding.message
    assert finding.fix.commands == ("# in COMMAND on node2: --node-rank 1",)


@pytest.mark.parametrize(
    ("by", "option", "fix"),
    [
        ("vllm", "--node-rank", " 1"),
        ("vllm -dpn", "--data-parallel-rank", " 1"),
        ("litgpt pretrain", "NODE_RANK", "=1"),
        ("a launcher of a later distcheck", "NODE_RANK", "=1"),
    ],
)
def test_each_launcher_has_names_of_its_own(stated, only, by, option, fix):
    finding, _ = only(stated(replace(static(0), by=by)))
    assert f"{by}'s {option} is 0 on each" in finding.message
    assert finding.fix.commands == (f"# in COMMAND on node2: {option}{fix}",)


@pytest.mark.parametrize(
    ("by", "option"),
    [
        ("sglang", "--dist-init-addr node1:29500"),
        ("fabric run", "--main-address node1"),
        ("llamafactory-cli train", "MASTER_ADDR=node1"),
    ],
)
def test_the_meeting_place_has_names_of_its_own(stated, only, by, option):
    finding, _ = only(stated(replace(static(0, "localhost"), by=by), replace(static(1, "localhost"), by=by)))
    assert finding.fix.commands == (f"# in COMMAND, on all nodes: {option}",)


def test_a_node_rank_beyond_the_number_of_nodes_is_named(stated, only):
    finding, code = only(stated(static(0), static(2)))
    assert (finding.rule, finding.nodes, code) == ("command-node-rank-beyond", ("node2",), 30)
    assert "--node-rank is 2; of 2 nodes the last one is 1" in finding.message


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_several_nodes_cannot_meet_at_localhost_which_is_one_finding(stated, change, only, address):
    job = change.environment(stated(static(0, address), static(1, address)), None, MASTER_ADDR=address)
    job = change.process(job, None, master_resolution=Resolution("name", ("127.0.0.1",), 0.0))
    finding, code = only(job, "environment.master_addr")
    assert (finding.rule, code) == ("command-endpoint-local", 30)
    assert finding.fix.commands == ("# in COMMAND, on all nodes: --master-addr node1",)


def test_an_endpoint_at_localhost_is_named_by_its_own_option(stated, only):
    here = Stated("torchrun", "2", 2, 0, None, "localhost", 29400, "none")
    assert only(stated(here))[0].fix.commands == ("# in COMMAND, on all nodes: --rdzv-endpoint node1:29400",)


@pytest.fixture
def meeting(stated, change):
    """Build a job whose nodes meet at 10.0.0.1, where the names of node1 and node2 have these addresses."""

    def make(own1: str, own2: str, said: Stated = ENDPOINT, **asked):
        job = stated(said, said, looks=("environment", "meeting", "peers"), **asked)
        for node, own in enumerate((own1, own2)):
            name = Resolution(f"node{node + 1}", (own,), 0.0)
            facts = NetworkFacts(own_name=name, own_name_binds=own, links=())
            job = change.node(job, node, network=facts)
        resolved = Resolution(said.master_addr, (said.master_addr,), 0.0)
        return change.process(job, None, master_resolution=resolved)

    return make


def test_one_agent_that_hosts_the_store_is_as_it_should_be(meeting, silent):
    assert silent(meeting("10.0.0.1", "10.0.0.2"))


def test_an_endpoint_that_no_nodes_own_name_has_is_served_by_nobody(meeting, only):
    finding, code = only(meeting("127.0.1.1", "127.0.1.1"))
    assert (finding.rule, code) == ("command-endpoint-unserved", 30)
    assert finding.message.startswith("no agent will host the store at 10.0.0.1:29400")
    assert finding.fix.commands == ("# add to COMMAND on node1 only: --rdzv-conf is_host=1",)


def test_two_agents_with_one_address_each_host_a_store(meeting, only):
    finding, _ = only(meeting("10.0.0.1", "10.0.0.1"))
    assert finding.message.startswith("node1 and node2 will each host a store for 10.0.0.1:29400")


def test_of_several_agents_on_one_machine_one_hosts_the_store(meeting, silent):
    job = meeting("10.0.0.1", "10.0.0.2")
    second = replace(job.processes[1], node=job.nodes[0].key)
    assert silent(replace(job, processes=(job.processes[0], second), nodes=job.nodes[:1]))


def test_agents_of_one_machine_may_meet_at_localhost(stated, silent):
    job = stated(Stated("torchrun", "2", 2, 0, None, "localhost", 29400, "none"))
    second = replace(job.processes[1], node=job.nodes[0].key)
    assert silent(replace(job, processes=(job.processes[0], second), nodes=job.nodes[:1]))


def test_numbers_that_the_nodes_got_at_their_endpoint_are_not_the_commands(stated, silent):
    assert silent(stated(replace(ENDPOINT, node_rank=0)))


def test_is_host_decides_whatever_the_names_are(meeting, silent, change):
    job = meeting("127.0.1.1", "127.0.1.1")
    job = change.process(
        job, 0, launch=Stated("torchrun", "2", 2, 0, None, "10.0.0.1", 29400, "none", hosts_store=True)
    )
    assert silent(job)


def test_what_is_not_known_of_all_nodes_is_no_fault(meeting, silent, change):
    job = meeting("127.0.1.1", "127.0.1.1")
    assert silent(change.node(job, 1, network=None))
    assert silent(change.process(job, 2, launch=None))


def test_two_lines_on_one_machine_count_their_local_ranks_apart(job_of, change, silent):
    job = job_of(1, 4, "distcheck", told="placement from torchrun's arguments: …")
    second = replace(job.processes[0], uid="process-1", pid=job.processes[0].pid + 1)
    job = replace(job, processes=(*job.processes, second))
    for rank in range(4):
        own = replace(job.ranks[rank].placement, local_rank=rank % 2, local_world_size=2, node_rank=rank // 2)
        job = change.rank(job, rank, placement=own, process=f"process-{rank // 2}")
    both = change.process(change.process(job, 0, launch=static(0)), 2, launch=static(1))
    assert silent(both, "environment.local_ranks")


@pytest.mark.parametrize(
    ("stated", "command"),
    [
        (static(0), "# in COMMAND, on all nodes: --master-port 29501"),
        (ENDPOINT, "# in COMMAND, on all nodes: --rdzv-endpoint 10.0.0.1:29501"),
        (
            Stated("accelerate launch", "2", 2, 0, 0, "node1", 29500),
            "# in COMMAND, on all nodes: --main_process_port 29501",
        ),
        (Stated("sglang", "2", 2, 0, 0, "node1", 29500), "# in COMMAND, on all nodes: --dist-init-addr node1:29501"),
        (Stated("llamafactory-cli train", "2", 2, 0, 0, "node1", 29500), "export MASTER_PORT=29501"),
    ],
)
def test_another_port_is_set_by_the_launchers_own_option(job_of, change, stated, command):
    job = change.process(job_of(2, 2, "distcheck"), None, launch=stated)
    fix = in_launch_words(job, Fix("Use another port.", ("export MASTER_PORT=29501", "ss -ltnp")))
    assert fix.commands == (command, "ss -ltnp")


@pytest.mark.parametrize(
    ("by", "remedy", "command"),
    [
        ("torchrun", "--master-port 29500", "# in COMMAND, on all nodes: --master-port 29500"),
        ("llamafactory-cli train", "MASTER_PORT=29500", "export MASTER_PORT=29500"),
        ("torchrun", "", ""),
    ],
)
def test_a_command_that_will_be_refused_names_its_node_and_what_it_would_take(
    job_of, change, only, by, remedy, command
):
    job = job_of(1, 1, "distcheck", told="placement not read from torchrun: …")
    words = "--master-port 70000, expected a port from 1 to 65535"
    finding, code = only(change.process(job, 0, launch=Stated(by, refused=words, remedy=remedy)))
    assert (finding.rule, finding.nodes, code) == ("command-refused", ("node1",), 30)
    assert finding.message == f"node1 pid 100: {by} will refuse its words: {words}"
    assert finding.fix.commands == ((command,) if command else ())


def test_what_is_wrong_with_the_ranks_of_a_refused_command_is_no_finding_of_its_own(stated, change, only):
    wrong = "--nproc-per-node is 'two', expected a number from 1"
    job = stated(static(0), replace(static(1), nproc="1", refused=wrong))
    job = replace(job, ranks=job.ranks[:3])  # one rank stands for those of the second node
    job = change.rank(job, 2, placement=replace(job.ranks[2].placement, rank=1, world_size=2))
    finding, code = only(job, "environment.ranks")
    assert (finding.rule, finding.nodes, code) == ("command-refused", ("node2",), 30)


@pytest.mark.parametrize(
    ("stated", "command"),
    [
        (Stated("torchrun", "16"), "# in COMMAND: --nproc-per-node 8"),
        (Stated("deepspeed", "16"), "# in COMMAND: --num_gpus 8"),
        (Stated("torchrun", "8"), "distcheck gate --nproc 8"),
        (Stated("litgpt pretrain", "16"), "distcheck gate --nproc 8"),
    ],
)
def test_fewer_ranks_are_set_by_the_launchers_own_option(job_of, change, stated, command):
    job = change.process(job_of(1, 16, "distcheck"), None, launch=stated)
    assert in_launch_words(job, Fix("Start fewer.", ("distcheck gate --nproc 8",))).commands == (command,)
