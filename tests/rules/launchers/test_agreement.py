"""The options of torchrun's agents on different nodes, and the nodes of their world."""

from __future__ import annotations

import pytest
from rules.launchers.conftest import agent

C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint=10.0.0.1:29400", "--rdzv-id", "7")
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "node[1-4]"}
STEP |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
MISMATCH = "torchrun-nnodes-mismatch"


@pytest.fixture
def world(job_of, change):
    """Build a torchrun world of two ranks per node; each agent has its node's arguments."""

    def make(*nodes, program="torchrun", **variables):
        job = job_of(len(nodes), 2, "torchrun", ("environment", "meeting"))
        for n, arguments in enumerate(nodes):
            job = change.process(job, [2 * n, 2 * n + 1], agent=agent(*arguments, "train.py", program=program))
        return change.environment(job, None, TORCHELASTIC_RUN_ID="7", **variables)

    return make


@pytest.fixture
def said(judge):
    """Return the only finding of a job and its exit code."""

    def of(job):
        diagnosis = judge(job)
        (found,) = diagnosis.findings
        return found, diagnosis.verdict.exit_code

    return of


def exact(number, *more):
    return (f"--nnodes={number}", *more)


@pytest.mark.parametrize("more", [(), C10D, (*C10D, "--max-restarts=3")], ids=["static", "c10d", "restarts"])
@pytest.mark.parametrize("nnodes", ["4", "4:4", "1:4", "3:4"])
@pytest.mark.parametrize("step", [{}, STEP], ids=["by hand", "srun"])
def test_agents_that_agree_are_silent(world, judge, nnodes, more, step):
    assert judge(world(*[exact(nnodes, *more)] * 4, **step))[:2] == ((), ())


def test_a_number_of_nodes_set_elsewhere_is_no_contradiction(world, judge):
    given = ("launch", "--num_machines=2", "--multi_gpu")
    assert judge(world(given, ("launch", "--multi_gpu"), program="accelerate")).findings == ()
    assert judge(world((), (), PET_NNODES="2")).findings == ()


@pytest.mark.parametrize(
    ("agents", "step", "rule", "severity", "code", "words"),
    [
        ([exact(3), exact(4), exact(4)], {}, MISMATCH, "error", 30,
         "on node2 and node3; their world has 3 nodes"),
        ([exact(3), exact(4), exact(4)], STEP, MISMATCH, "error", 30, "node4 of the Slurm step is not in it"),
        ([exact("1:4", *C10D), exact("1:2", *C10D)], {}, MISMATCH, "warning", 0, "--nnodes 1:2 on node2"),
        ([exact(3, *C10D)] * 3, STEP, MISMATCH, "warning", 0, "Slurm's step has 4; node4 is in no world"),
        ([exact("4", *C10D)] * 3, {}, MISMATCH, "error", 20, "a world of 3 nodes, and --nnodes 4 needs 4"),
        ([exact("4:5", *C10D)] * 3, {}, MISMATCH, "error", 20, "a world of 3 nodes, and --nnodes 4:5 needs 4"),
    ],
)  # fmt: skip
def test_agents_that_disagree_or_lack_others(world, said, agents, step, rule, severity, code, words):
    found, exit_code = said(world(*agents, **step))
    assert (found.rule, found.severity, exit_code) == (rule, severity, code)
    assert words in found.message


def test_the_fix_and_the_ranks_are_those_of_the_agents_at_fault(world, said):
    job = world(exact(3), exact(4), exact(4), **STEP)
    assert said(job)[0].fix.commands == ("torchrun --nnodes=$SLURM_NNODES train.py",)
    found, _ = said(world(*[exact(4, *C10D)] * 3))
    assert (found.confirmed, found.nodes, found.ranks) == (False, (), ()), "those that are there are not to blame"


def test_the_world_size_of_an_agent_is_not_the_number_of_agents_that_met(world, said, change):
    static = world(exact(3), exact(4), exact(4), **STEP)
    found, _ = said(change.environment(static, [2, 3, 4, 5], GROUP_WORLD_SIZE="4"))
    assert "their world has 3 nodes, and node4 of the Slurm step is not in it" in found.message
    c10d = change.environment(world(*[exact(4, *C10D)] * 3, **STEP), [0, 1], GROUP_WORLD_SIZE="4")
    found, exit_code = said(c10d)
    assert (found.rule, found.nodes, exit_code) == (MISMATCH, ("node4",), 20)


def test_the_node_missing_from_an_exact_world_is_named_under_slurm(world, said, change):
    found, exit_code = said(change.node(world(*[exact(4, *C10D)] * 3, **STEP), 2, name="node4"))
    assert (found.rule, found.nodes, exit_code) == (MISMATCH, ("node3",), 20)
    assert found.fix.commands[0] == "srun --overlap --jobid=77 --ntasks-per-node=1 date +%s.%N"
