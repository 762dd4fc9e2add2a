"""The nodes of missing ranks: named if the launcher's variables give them, otherwise unknown."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT
from rules.launchers.conftest import agent

from distcheck.facts.job import Launched, LaunchedNode
from distcheck.report import Detail
from distcheck.report.document import document
from distcheck.report.text import render
from distcheck.rules.job.homes import homes
from distcheck.selection.nodelist import deal

# As Slurm 22.05 placed them: what it was asked for, SLURM_STEP_TASKS_PER_NODE, and the node of each task.
STEPS = {
    "block": ("", None, "2(x4)", (0, 0, 1, 1, 2, 2, 3, 3)),
    "cyclic": ("cyclic", None, "2(x4)", (0, 1, 2, 3, 0, 1, 2, 3)),
    "plane=2": ("plane", "2", "5,1(x3)", (0, 0, 1, 2, 3, 0, 0, 0)),
    "uneven": ("", None, "3,1(x2)", (0, 0, 0, 1, 2)),
    "an order of one's own": ("arbitrary", None, "1,2,1", (1, 0, 1, 2)),
}


@pytest.fixture
def step(job_of, change):
    """Return the job of a step whose tasks lie on nodes in this order; every task is a rank."""

    def made(order, tasks, distribution="", plane=None, **more):
        nodes = range(max(order) + 1)
        job = job_of(per_node=[order.count(n) for n in nodes], launcher="slurm", **more)
        ranks = [rank for n in nodes for rank, at in enumerate(order) if at == n]
        for position, rank in enumerate(ranks):
            numbers = {"SLURM_PROCID": str(rank)} | ({"RANK": str(rank)} if more.get("mapped", True) else {})
            job = change.environment(job, position, **numbers)
        return change.environment(
            job,
            None,
            SLURM_STEP_NODELIST=f"node[1-{len(nodes)}]",
            SLURM_STEP_TASKS_PER_NODE=tasks,
            SLURM_DISTRIBUTION=distribution or None,
            SLURM_DIST_PLANESIZE=plane,
        )

    return made


def without_nodes(change, job, *lost):
    return change.keep(job, *(i for i, r in enumerate(job.ranks) if job.node_of(r).name not in lost))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("asked", [name for name, (kind, *_) in STEPS.items() if kind != "arbitrary"])
def test_ranks_missing_under_srun_are_on_the_nodes_that_slurm_assigned(step, change, asked, mapped):
    distribution, plane, tasks, order = STEPS[asked]
    assert deal([order.count(n) for n in range(max(order) + 1)], distribution, int(plane) if plane else None) == order
    job = step(order, tasks, distribution, plane, mapped=mapped)
    assert homes(job) == {}, "nobody is missing"
    everywhere = {rank: f"node{n + 1}" for rank, n in enumerate(order)}
    for lost in (("node2",), ("node1",), ("node2", "node3")):
        assert homes(without_nodes(change, job, *lost)) == {r: n for r, n in everywhere.items() if n in lost}


def test_in_an_arbitrary_order_only_a_single_node_is_known(step, change):
    _, _, tasks, order = STEPS["an order of one's own"]
    job = step(order, tasks, "arbitrary")
    assert homes(without_nodes(change, job, "node2")) == {0: "node2", 2: "node2"}, "all others are complete"
    assert homes(without_nodes(change, job, "node2", "node3")) == {}


def test_a_rank_on_an_unexpected_node_makes_the_nodes_unknown(step, change):
    order = STEPS["block"][3]
    claims_block = step(STEPS["cyclic"][3], "2(x4)")
    assert homes(without_nodes(change, claims_block, "node2", "node3")) == {}
    truly = step(order, "2(x4)")
    assert set(homes(without_nodes(change, truly, "node2", "node3")).values()) == {"node2", "node3"}


@pytest.mark.parametrize(
    ("where", "variable", "value"),
    [
        (None, "SLURM_STEP_NODELIST", "node[1-3]"),
        (None, "SLURM_STEP_NODELIST", "node[1-4"),
        (None, "SLURM_STEP_NODELIST", "other[1-4]"),
        (None, "SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
        (None, "SLURM_STEP_TASKS_PER_NODE", "3(x4)"),
        (None, "SLURM_STEP_ID", "4294967290"),
        (0, "SLURM_STEP_ID", "1"),
    ],
)
def test_inconsistent_variables_make_the_nodes_unknown(step, change, where, variable, value):
    job = without_nodes(change, step(STEPS["block"][3], "2(x4)"), "node2", "node3")
    assert homes(change.environment(job, where, **{variable: value})) == {}


def test_each_task_with_several_ranks_is_found_by_its_task(job_of, change):
    job = job_of(nodes=4, per_node=4, launcher="distcheck")
    for position, rank in enumerate(job.ranks):
        node = position // 4
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-4]", "SLURM_NTASKS": "4"}
        step |= {"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_PROCID": str(node), "SLURM_NODEID": str(node)}
        job = change.rank(job, position, environment={**rank.environment, **step})
    lost = without_nodes(change, job, "node2", "node4")
    assert homes(lost) == dict.fromkeys(range(4, 8), "node2") | dict.fromkeys(range(12, 16), "node4")


def agents(job_of, change, *words, nodes=3):
    """Return the job of a torchrun on each node of a step, whose agents were given these words."""
    job = job_of(nodes=nodes, per_node=2, launcher="torchrun")
    for position in range(len(job.ranks)):
        node = str(position // 2)
        job = change.environment(job, position, SLURM_PROCID=node, SLURM_NODEID=node)
    job = change.process(job, None, agent=agent(*words))
    return change.environment(
        job, None, SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_STEP_NODELIST=f"node[1-{nodes}]",
        SLURM_STEP_TASKS_PER_NODE=f"1(x{nodes})",
    )  # fmt: skip


def test_agents_follow_the_tasks_of_the_step_only_with_a_static_rendezvous(job_of, change):
    static = agents(job_of, change, "--nnodes=3", "--node-rank=0")
    found = homes(without_nodes(change, static, "node2", "node3"))
    assert found == {2: "node2", 3: "node2", 4: "node3", 5: "node3"}
    free = agents(job_of, change, "--nnodes=3", "--rdzv-backend=c10d")
    assert homes(without_nodes(change, free, "node2", "node3")) == {}
    assert homes(without_nodes(change, free, "node3")) == {4: "node3", 5: "node3"}, "all others are complete"


@pytest.mark.parametrize("launcher", ["openmpi", "mvapich", "hydra", "pals", "jsrun", "horovod"])
def test_under_mpirun_only_a_node_that_joined_can_be_known(job_of, change, launcher):
    job = job_of(nodes=3, launcher=launcher)
    assert homes(change.keep(job, 0, 1, 2, 4, 5)) == {3: "node2"}
    assert homes(without_nodes(change, job, "node2")) == {}, "nothing names it"
    assert homes(change.keep(job, 0, 2, 3, 4)) == {}, "rank 1 or rank 5 may be on either"
    assert homes(change.keep(job_of(nodes=3), 0, 1, 2, 4, 5)) == {}, "by hand"


# -- what the report makes of it


def test_the_missing_node_is_in_the_message_the_table_the_finding_and_the_fix(step, change, only):
    job = without_nodes(change, step(STEPS["block"][3], "2(x4)"), "node3")
    finding, exit_code = only(job)
    assert (finding.rule, finding.ranks, finding.nodes, exit_code) == ("env-rank-missing", (4, 5), ("node3",), 20)
    assert finding.message == "ranks 4-5 (node3) of 8 did not join the roll call"
    assert finding.fix.commands == (
        "scontrol show node node3",
        "sacct -j 77 --format=JobID,State,ExitCode,NodeList",
    )
    assert finding.evidence["node3"] == "ranks 4-5"


def test_missing_nodes_are_neither_excluded_nor_a_system_fault(step, change, only, judge):
    job = without_nodes(change, step(STEPS["block"][3], "2(x4)"), "node2", "node3", "node4")
    finding, exit_code = only(job)
    assert (finding.nodes, finding.scope, exit_code) == (("node2", "node3", "node4"), "node", 20)
    report = document(job, judge(job))
    assert report.exclude.nodes == ()
    assert {row.rank: (row.node, row.status) for row in report.ranks if row.status == "missing"} == {
        rank: (f"node{rank // 2 + 1}", "missing") for rank in range(2, 8)
    }
    assert "8 ranks (6 missing: 2-7 on node[2-4])" in render(job, judge(job), Detail())


def test_missing_ranks_of_an_agent_that_joined_are_on_its_node_and_others_on_an_unknown_one(job_of, change, only):
    job = change.keep(job_of(nodes=3, per_node=4, launcher="torchrun"), 0, 1, 2, 3, 4, 6)
    assert homes(job) == {5: "node2", 7: "node2"}
    finding, _ = only(job)
    assert finding.message.startswith("ranks 5,7 (node2) and ranks 8-11 of 12 did not join")
    assert finding.nodes == ("node2",)
    assert finding.fix.commands == ("ssh node2 pgrep -af python",)


def test_the_command_for_pods_uses_kubectl(job_of, change, only):
    job = change.environment(change.keep(job_of(), 0), None, KUBERNETES_SERVICE_HOST="10.96.0.1")
    assert only(job)[0].fix.commands == ("kubectl get pods -o wide",)


def test_nodes_given_to_distcheck_are_named(job_of, change, judge):
    job = job_of(nodes=2)
    hosts = tuple(LaunchedNode(name=f"host{n + 1}", ranks=(2 * n, 2 * n + 1), outcome="reported") for n in range(2))
    launched = Launched(engine="ssh", command=("ssh",), nodes=hosts)
    job = change.job(change.keep(job, 0, 1, 2), launched=launched)
    assert homes(job) == {3: "host2"}
    (finding,) = judge(job, *CONTRACT).findings
    assert finding.nodes == ("host2",)
