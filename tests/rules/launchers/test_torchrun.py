"""The options of torchrun's agents, and the faults that keep the agents apart."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Bind, Interface, Resolution
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent
from distcheck.rules import all_rules, rules_for
from distcheck.rules.job.agents import told

UNKNOWN = Missing(reason="[Errno -2] Name or service not known")
STATIC = ("--nnodes", "4", "--node-rank", "0", "--master-addr", "node1", "--nproc-per-node=2", "train.py")
C10D = ("--nnodes=4", "--rdzv-backend", "c10d", "--rdzv_endpoint=10.0.0.1:29400", "--rdzv-id", "7", "train.py")
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def agent(*arguments, program="torchrun", **exported):
    return Agent(program=program, pid=9, arguments=arguments, exported=Variables(exported))


@pytest.fixture
def under(job_of, change):
    """Build a healthy job under torchrun whose agents have these arguments."""

    def make(*arguments, nodes=4, per_node=2, program="torchrun", exported=None, looks=("environment", "meeting"),
             gpus=0, **variables):  # fmt: skip
        job = job_of(nodes, per_node, "torchrun", looks, gpus=gpus)
        job = change.process(job, None, agent=agent(*arguments, program=program, **(exported or {})))
        return change.environment(job, None, **({"TORCHELASTIC_RUN_ID": "7"} | variables))

    return make


@pytest.fixture
def named(judge):
    """Return rule and severity of each finding of a job."""
    return lambda job: [(f.rule, f.severity) for f in judge(job).findings]


def variables(nodes, tasks):
    return STEP | {"SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NNODES": str(nodes)}


# -- the agents' options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "arguments", "options"),
    [
        ("torchrun", STATIC, {"nnodes": "4", "node-rank": "0", "master-addr": "node1", "nproc-per-node": "2"}),
        ("torchrun", ("--standalone", "-m", "train", "--nnodes", "9"), {"standalone": "", "m": ""}),
        ("torchrun", ("--nproc_per_node=gpu", "-r", "3", "train.py"), {"nproc-per-node": "gpu", "redirects": "3"}),
        ("torchrun", ("--rdzv-id=", "train.py"), {"rdzv-id": ""}),
        ("torchrun", ("--nnodes",), {"nnodes": ""}),
        ("launch", ("--use_env", "--nnodes=2", "train.py", "--lr", "1"), {"use-env": "", "nnodes": "2"}),
        (
            "accelerate",
            ("launch", "--multi_gpu", "--num_machines", "2", "--machine_rank=1", "train.py"),
            {"multi-gpu": "", "nnodes": "2", "node-rank": "1"},
        ),
    ],
)
def test_an_agents_command_line_is_read_up_to_the_script(under, program, arguments, options):
    job = under(*arguments, program=program)
    assert told(job, job.ranks[0]) == options


def test_options_not_on_the_command_line_are_taken_from_pet_variables(under):
    job = under("--nnodes=4", "train.py", PET_NNODES="2", PET_RDZV_BACKEND="c10d", PET_NODE_RANK="")
    assert told(job, job.ranks[0]) == {"nnodes": "4", "rdzv-backend": "c10d"}


def test_the_options_of_an_unknown_agent_are_none(job_of):
    job = job_of(2, 2, "torchrun")
    assert told(job, job.ranks[0]) is None


# -- the families of launchers ------------------------------------------------------------------------------------


def test_rules_of_a_launcher_are_skipped_under_other_launchers(job_of, change):
    def families(job):
        return {rule.family for rule in rules_for(job)}

    assert not families(job_of()) & {"torchrun", "elastic", "kubernetes", "slurm", "mpi"}
    assert {"torchrun", "elastic"} <= families(job_of(1, 2, "torchrun"))
    assert "kubernetes" in families(change.environment(job_of(), 1, KUBERNETES_SERVICE_HOST="10.0.0.1"))


def test_rules_that_the_user_selected_are_judged_under_every_launcher(job_of, change):
    job = change.asked(job_of(), select=("torchrun-nnodes-mismatch",))
    assert {rule.family for rule in all_rules() if "environment" in rule.look} <= {r.family for r in rules_for(job)}


# -- healthy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [STATIC, C10D, ("--nnodes=1:4", *C10D[1:])], ids=["static", "c10d", "elastic"])
@pytest.mark.parametrize("slurm", [{}, variables(4, 4)], ids=["by hand", "srun"])
def test_a_healthy_job_of_four_agents_is_silent(under, judge, arguments, slurm):
    job = under(*arguments, exported={"MASTER_ADDR": "node1", "NODE_RANK": "0"}, **slurm)
    assert judge(job)[:2] == ((), ())


@pytest.mark.parametrize("arguments", [("--standalone", "train.py"), ("--nproc-per-node=2", "train.py")])
@pytest.mark.parametrize("slurm", [{}, variables(1, 1)], ids=["by hand", "srun"])
def test_a_healthy_job_of_one_agent_is_silent(under, judge, arguments, slurm):
    exported = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "0"}
    assert judge(under(*arguments, nodes=1, exported=exported, **slurm))[:2] == ((), ())


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [variables(4, 4), {"NODE_RANK": "2"}, {"NNODES": "4"}], ids=["srun", "NODE_RANK", "NNODES"]
)
def test_torchrun_ignores_master_env_where_more_nodes_are_intended(under, judge, more):
    job = under("--nproc-per-node=2", "train.py", nodes=1, exported={"MASTER_ADDR": "node1"}, **more)
    (found,) = judge(job).findings
    assert (found.rule, found.severity, found.ranks) == ("torchrun-ignores-master-env", "error", (0, 1))
    assert "MASTER_ADDR=node1" in found.message
    assert "--master-addr=node1" in found.fix.commands[0]


def test_another_exported_world_size_shows_that_more_nodes_are_intended(under, named):
    exported = {"MASTER_ADDR": "10.0.0.9", "WORLD_SIZE": "8"}
    job = under("--nproc-per-node=2", "train.py", nodes=1, exported=exported)
    assert named(job) == [("torchrun-ignores-master-env", "error")]


@pytest.mark.parametrize("arguments", [("--standalone", "train.py"), ("--master-addr=node1", "train.py")])
def test_an_exported_address_is_silent_where_an_option_sets_the_master(under, named, arguments):
    job = under(*arguments, nodes=1, exported={"MASTER_ADDR": "node1"}, NODE_RANK="0", NNODES="4")
    assert named(job) == []


def test_torchrun_nnodes_mismatch_with_the_nodes_of_the_step(under, judge):
    (found,) = judge(under("train.py", nodes=1, **variables(2, 2))).findings
    assert (found.rule, found.severity, found.ranks) == ("torchrun-nnodes-mismatch", "warning", (0, 1))
    assert "world has 1 node (no --nnodes); Slurm's step has 2" in found.message


def test_standalone_on_every_node_of_a_step_is_silent(under, named):
    assert named(under("--standalone", "train.py", nodes=1, **variables(2, 2))) == []


def test_an_elastic_job_below_its_maximum_is_an_info(under, named):
    job = under("--nnodes=1:6", *C10D[1:], TORCHELASTIC_USE_AGENT_STORE="False")
    assert named(job) == [("torchrun-nnodes-mismatch", "info")]


def test_torchrun_per_task_under_srun(under, judge):
    job = under("--nproc-per-node=2", "train.py", nodes=1, **variables(2, 16))
    (found,) = judge(job).findings
    assert (found.rule, found.severity, found.ranks) == ("torchrun-per-task-under-srun", "error", (0, 1))
    assert "16 tasks on 2 nodes" in found.message


def test_a_task_intended_as_an_agent_is_silent(under, named):
    job = under("--nnodes=4", *C10D[1:], nodes=4, per_node=1, **variables(2, 4))
    assert named(job) == []


def test_torchrun_rdzv_id_mismatch_where_the_id_is_empty(under, judge):
    arguments = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=", "train.py")
    (found,) = judge(under(*arguments, nodes=1, TORCHELASTIC_RUN_ID="8f6c")).findings
    assert (found.rule, found.severity) == ("torchrun-rdzv-id-mismatch", "error")
    assert "1 of 4 nodes met" in found.message


@pytest.mark.parametrize(("more", "severity"), [({}, "info"), (variables(4, 4), "error")])
def test_torchrun_localhost_name_ambiguous(under, named, more, severity):
    arguments = ("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", "--rdzv-id=7", "train.py")
    assert named(under(*arguments, nodes=1, **more)) == [("torchrun-localhost-name-ambiguous", severity)]


def test_agents_of_one_machine_may_meet_at_localhost(under, named):
    arguments = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=7", "train.py")
    assert named(under(*arguments, nodes=2)) == []


def test_torchrun_fqdn_unreachable_where_the_agents_own_name_does_not_resolve(under, change, judge):
    job = change.process(under(*C10D), [6, 7], master_resolution=UNKNOWN)
    (found,) = judge(job).findings
    assert (found.rule, found.severity, found.nodes) == ("torchrun-fqdn-unreachable", "error", ("node4",))
    assert "--local-addr" in found.fix.commands[-1]


def test_torchrun_fqdn_unreachable_suspects_the_node_where_a_retry_may_find_the_name(under, change, judge):
    job = change.process(under(*C10D), [6, 7], master_resolution=Missing(reason="Temporary failure, errno -3"))
    (found,) = judge(job).findings
    assert (found.rule, found.scope, found.confirmed, found.nodes) == (
        "torchrun-fqdn-unreachable", "node", False, ("node4",)
    )  # fmt: skip


def test_torchrun_fqdn_unreachable_where_the_name_is_loopback(under, change, judge):
    job = change.environment(under(*C10D), None, MASTER_ADDR="localhost.localdomain")
    here = Resolution(name="localhost.localdomain", addresses=("127.0.0.1",), seconds=0.0)
    said = judge(change.process(job, None, master_resolution=here))
    assert [(f.rule, f.ranks) for f in said.findings] == [("torchrun-fqdn-unreachable", tuple(range(8)))]


def test_an_address_set_by_the_user_is_another_rules_finding(under, change, named):
    job = change.process(under(*STATIC), [6, 7], master_resolution=UNKNOWN)
    assert named(job) == [("env-master-addr-unresolvable", "error")]


def test_an_address_of_another_host_chosen_by_the_agent_is_torchrun_fqdn_unreachable(under, change, named):
    job = change.process(under(*C10D), None, attempts=())
    elsewhere = Resolution(name="node1", addresses=("10.9.9.9",), seconds=0.0)
    job = change.process(job, None, master_resolution=elsewhere)
    job = change.node(job, None, interfaces=(Interface(name="eth0", address="10.0.0.1", up=True, mtu_bytes=1500),))
    assert named(job) == [("torchrun-fqdn-unreachable", "error")]


@pytest.mark.parametrize(
    ("arguments", "rule"), [(C10D, "torchrun-store-port-extra"), (STATIC, "net-master-unreachable")]
)
def test_torchrun_store_port_extra_only_where_the_agent_chose_the_port(under, change, judge, arguments, rule):
    lost = Attempt(address="10.0.0.1", port=45319, door="master", outcome="timeout")
    job = change.process(under(*arguments), [2, 3], attempts=(lost,))
    job = change.process(job, 0, bind=Bind(port=45319, outcome="agent"))
    (found,) = judge(job).findings
    assert (found.rule, found.scope, found.ranks) == (rule, "link", (2, 3))
