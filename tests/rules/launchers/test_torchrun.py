"""The options of torchrun's agents, and the faults that keep the agents apart."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Bind, Interface, Resolution
from distcheck.rules import all_rules, rules_for
from distcheck.rules.job.agents import ElasticAgent

UNKNOWN = Missing(reason="[Errno -2] Name or service not known")
STATIC = ("--nnodes", "4", "--node-rank", "0", "--master-addr", "node1", "--nproc-per-node=2", "train.py")
C10D = ("--nnodes=4", "--rdzv-backend", "c10d", "--rdzv_endpoint=10.0.0.1:29400", "--rdzv-id", "7", "train.py")
ELASTIC = ("--nnodes=1:4", "--rdzv-backend=c10d")
AT_LOCALHOST = (*ELASTIC, "--rdzv-endpoint=localhost:29400", "--rdzv-id=7", "train.py")
WITHOUT_ID = (*ELASTIC, "--rdzv-endpoint=node1:29400", "--rdzv-id=", "train.py")
EXPORTED = {"MASTER_ADDR": "node1"}


def step(nodes, tasks):
    sizes = {"SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NNODES": str(nodes)}
    return {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"} | sizes


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
    assert ElasticAgent(job, job.ranks[0]).options == options


def test_options_not_on_the_command_line_are_taken_from_pet_variables(under):
    job = under("--nnodes=4", "train.py", PET_NNODES="2", PET_RDZV_BACKEND="c10d", PET_NODE_RANK="")
    assert ElasticAgent(job, job.ranks[0]).options == {"nnodes": "4", "rdzv-backend": "c10d"}


def test_nothing_is_known_of_the_options_of_an_unknown_agent(job_of):
    job = job_of(2, 2, "torchrun")
    unknown = ElasticAgent(job, job.ranks[0])
    assert (unknown.options, unknown.rendezvous, unknown.nnodes) == ({}, "", None)


@pytest.mark.parametrize(
    ("program", "arguments", "line"),
    [
        ("torchrun", ("--master-port", "1", "a b.py", "--x"), "torchrun --master-port=29501 'a b.py' --x"),
        ("torchrun", ("--nnodes=2", "--master_port=1", "-m", "t"), "torchrun --master-port=29501 --nnodes=2 -m t"),
        ("torchrun", (), "torchrun --master-port=29501"),
        ("launch", ("--use-env", "t.py"), "python -m torch.distributed.launch --master-port=29501 --use-env t.py"),
        (
            "accelerate",
            ("launch", "--main_process_port=1", "--multi_gpu", "t.py"),
            "accelerate launch --main_process_port=29501 --multi_gpu t.py",
        ),
        ("torchrun", ("--nnodes=2",) * 40, "export PET_MASTER_PORT=29501"),
    ],
)
def test_an_agent_is_restarted_with_its_own_arguments_and_another_option(under, program, arguments, line):
    job = under(*arguments, program=program)
    assert ElasticAgent(job, job.ranks[0]).restarted({"master-port": "29501"}) == line


# -- the families of launchers ------------------------------------------------------------------------------------


def test_rules_of_a_launcher_are_skipped_under_other_launchers(job_of, change):
    def families(job):
        return {rule.family.removeprefix("launchers.") for rule in rules_for(job)}

    assert not families(job_of()) & {"torchrun", "elastic", "kubernetes", "slurm", "mpi"}
    assert {"torchrun", "elastic"} <= families(job_of(1, 2, "torchrun"))
    assert "kubernetes" in families(change.environment(job_of(), 1, KUBERNETES_SERVICE_HOST="10.0.0.1"))


def test_rules_that_the_user_selected_are_judged_under_every_launcher(job_of, change):
    job = change.asked(job_of(), select=("torchrun-nnodes-mismatch",))
    assert {rule.family for rule in all_rules() if "environment" in rule.look} <= {r.family for r in rules_for(job)}


# -- healthy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [STATIC, C10D, ("--nnodes=1:4", *C10D[1:])], ids=["static", "c10d", "elastic"])
@pytest.mark.parametrize("slurm", [{}, step(4, 4)], ids=["by hand", "srun"])
def test_a_healthy_job_of_four_agents_is_silent(under, judge, arguments, slurm):
    job = under(*arguments, nodes=4, exported=EXPORTED | {"NODE_RANK": "0"}, **slurm)
    assert judge(job)[:2] == ((), ())


@pytest.mark.parametrize("arguments", [("--standalone", "train.py"), ("--nproc-per-node=2", "train.py")])
@pytest.mark.parametrize("slurm", [{}, step(1, 1)], ids=["by hand", "srun"])
def test_a_healthy_job_of_one_agent_is_silent(under, judge, arguments, slurm):
    exported = EXPORTED | {"MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "0"}
    assert judge(under(*arguments, nodes=1, exported=exported, **slurm))[:2] == ((), ())


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("--standalone", "train.py"), {"nodes": 1, "exported": EXPORTED, "NODE_RANK": "0", "NNODES": "4"}),
        (("--master-addr=node1", "train.py"), {"nodes": 1, "exported": EXPORTED, "NODE_RANK": "0", "NNODES": "4"}),
        (("--standalone", "train.py"), {"nodes": 1, **step(2, 2)}),
        (C10D, {"nodes": 4, "per_node": 1, **step(2, 4)}),
        (("--nnodes=2", *AT_LOCALHOST[1:]), {}),
    ],
    ids=["standalone", "master given", "standalone on every node", "each task is an agent", "on one machine"],
)
def test_what_looks_like_a_fault_and_is_intended_is_silent(under, judge, arguments, more):
    assert judge(under(*arguments, **more)).findings == ()


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [step(4, 4), {"NODE_RANK": "2"}, {"NNODES": "4"}, {"exported": {"MASTER_ADDR": "node1", "WORLD_SIZE": "8"}}],
    ids=["srun", "NODE_RANK", "NNODES", "WORLD_SIZE"],
)
def test_torchrun_ignores_master_env_where_more_nodes_are_intended(under, one, more):
    found = one(under("--nproc-per-node=2", "train.py", **({"nodes": 1, "exported": EXPORTED} | more)))
    assert (found.rule, found.severity, found.ranks) == ("torchrun-ignores-master-env", "error", (0, 1))
    assert "MASTER_ADDR=node1" in found.message
    assert "--master-addr=node1" in found.fix.commands[0]


@pytest.mark.parametrize(
    ("arguments", "more", "rule", "severity", "words"),
    [
        (("train.py",), step(2, 2), "torchrun-nnodes-mismatch", "warning",
         "world has 1 node (no --nnodes); Slurm's step has 2"),
        (("--nproc-per-node=2", "train.py"), step(2, 16), "torchrun-per-task-under-srun", "error",
         "16 tasks on 2 nodes"),
        (WITHOUT_ID, {"TORCHELASTIC_RUN_ID": "8f6c"}, "torchrun-rdzv-id-mismatch", "error", "1 of 4 nodes met"),
        (AT_LOCALHOST, {}, "torchrun-localhost-name-ambiguous", "info", "1 of 4 nodes met"),
        (AT_LOCALHOST, step(4, 4), "torchrun-localhost-name-ambiguous", "error", "--rdzv-endpoint is localhost:29400"),
    ],
)  # fmt: skip
def test_a_world_that_lacks_agents(under, one, arguments, more, rule, severity, words):
    job = under(*arguments, **({"nodes": 1} | more))
    found = one(job)
    assert (found.rule, found.severity, found.ranks) == (rule, severity, tuple(range(len(job.ranks))))
    assert words in found.message


@pytest.mark.parametrize(
    ("reason", "scope", "confirmed"), [(UNKNOWN.reason, "rank", True), ("Temporary failure, errno -3", "node", False)]
)
def test_torchrun_fqdn_unreachable_where_the_agents_own_name_does_not_resolve(
    under, change, one, reason, scope, confirmed
):
    found = one(change.process(under(*C10D, nodes=4), [6, 7], master_resolution=Missing(reason=reason)))
    assert (found.rule, found.severity, found.nodes) == ("torchrun-fqdn-unreachable", "error", ("node4",))
    assert (found.scope, found.confirmed) == (scope, confirmed)
    assert "--local-addr" in found.fix.commands[-1]


def test_torchrun_fqdn_unreachable_where_the_name_is_loopback(under, change, one):
    job = change.environment(under(*C10D, nodes=4), None, MASTER_ADDR="localhost.localdomain")
    here = Resolution(name="localhost.localdomain", addresses=("127.0.0.1",), seconds=0.0)
    found = one(change.process(job, None, master_resolution=here))
    assert (found.rule, found.ranks) == ("torchrun-fqdn-unreachable", tuple(range(8)))


def test_torchrun_fqdn_unreachable_where_the_name_is_another_hosts(under, change, one):
    elsewhere = Resolution(name="node1", addresses=("10.9.9.9",), seconds=0.0)
    job = change.process(under(*C10D, nodes=4), None, attempts=(), master_resolution=elsewhere)
    job = change.node(job, None, interfaces=(Interface(name="eth0", address="10.0.0.1", up=True, mtu_bytes=1500),))
    assert (one(job).rule, one(job).severity) == ("torchrun-fqdn-unreachable", "error")


def test_an_address_set_by_the_user_is_another_rules_finding(under, change, one):
    assert one(change.process(under(*STATIC, nodes=4), [6, 7], master_resolution=UNKNOWN)).rule == (
        "env-master-addr-unresolvable"
    )


@pytest.mark.parametrize(
    ("arguments", "rule"), [(C10D, "torchrun-store-port-extra"), (STATIC, "net-master-unreachable")]
)
def test_torchrun_store_port_extra_only_where_the_agent_chose_the_port(under, change, one, arguments, rule):
    lost = Attempt(address="10.0.0.1", port=45319, door="master", outcome="timeout")
    job = change.process(under(*arguments, nodes=4), [2, 3], attempts=(lost,))
    found = one(change.process(job, 0, bind=Bind(port=45319, outcome="agent")))
    assert (found.rule, found.scope, found.ranks) == (rule, "link", (2, 3))
