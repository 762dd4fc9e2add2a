"""The options of torchrun's agents on different nodes, and the nodes of their world."""

from __future__ import annotations

import pytest
from rules.launchers.conftest import agent

C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint=10.0.0.1:29400", "--rdzv-id", "7")
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "node[1-4]"}
STEP |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}


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
    """Return the findings of a job and its exit code."""

    def of(job):
        diagnosis = judge(job)
        return list(diagnosis.findings), diagnosis.verdict.exit_code

    return of


def exact(number, *more):
    return (f"--nnodes={number}", *more)


@pytest.mark.parametrize("more", [(), C10D, (*C10D, "--max-restarts=3")], ids=["static", "c10d", "restarts"])
@pytest.mark.parametrize("nnodes", ["4", "4:4", "1:4", "3:4"])
@pytest.mark.parametrize("step", [{}, STEP], ids=["by hand", "srun"])
def test_agents_that_agree_are_silent(world, said, nnodes, more, step):
    assert said(world(*[exact(nnodes, *more)] * 4, **step)) == ([], 0)


def test_different_numbers_of_nodes_are_the_jobs_error_and_the_values_are_named(world, said):
    (found,), exit_code = said(world(exact(3), exact(4), exact(4)))
    assert (found.rule, found.severity, found.scope, exit_code) == ("torchrun-nnodes-mismatch", "error", "job", 30)
    assert "--nnodes 3 on node1; --nnodes 4 on node2 and node3" in found.message
    assert "their world has 3 nodes, and an agent of another node waits forever if 4 were started" in found.message


def test_a_node_outside_a_contradictory_world_is_named_under_slurm(world, said):
    (found,), exit_code = said(world(exact(3), exact(4), exact(4), **STEP))
    assert (found.rule, exit_code) == ("torchrun-nnodes-mismatch", 30)
    assert "node4 of the Slurm step is not in it" in found.message
    assert found.fix.commands == ("torchrun --nnodes=$SLURM_NNODES train.py",)


def test_different_elastic_ranges_that_all_fit_the_world_are_a_warning(world, said):
    (found,), exit_code = said(world(exact("1:4", *C10D), exact("1:2", *C10D)))
    assert (found.rule, found.severity, exit_code) == ("torchrun-nnodes-mismatch", "warning", 0)


def test_a_node_of_the_step_outside_the_world_is_a_warning_with_its_name(world, said):
    (found,), exit_code = said(world(*[exact(3, *C10D)] * 3, **STEP))
    assert (found.rule, found.severity, exit_code) == ("torchrun-nnodes-mismatch", "warning", 0)
    assert found.message.endswith("Slurm's step has 4; node4 is in no world")


def test_the_world_size_of_an_agent_is_not_the_number_of_agents_that_met(world, said, change):
    static = world(exact(3), exact(4), exact(4), **STEP)
    ((found,), _) = said(change.environment(static, [2, 3, 4, 5], GROUP_WORLD_SIZE="4"))
    assert "their world has 3 nodes, and node4 of the Slurm step is not in it" in found.message
    c10d = change.environment(world(*[exact(4, *C10D)] * 3, **STEP), [0, 1], GROUP_WORLD_SIZE="4")
    ((found,), exit_code) = said(c10d)
    assert (found.rule, found.nodes, exit_code) == ("torchrun-nnodes-mismatch", ("node4",), 20)


@pytest.mark.parametrize("nnodes", ["4", "4:5"])
def test_fewer_nodes_than_the_minimum_are_not_a_pass(world, said, nnodes):
    (found,), exit_code = said(world(*[exact(nnodes, *C10D)] * 3))
    assert (found.rule, found.severity, found.confirmed, exit_code) == ("torchrun-nnodes-mismatch", "error", False, 20)
    assert f"a world of 3 nodes, and --nnodes {nnodes} needs 4" in found.message
    assert (found.nodes, found.ranks) == ((), ()), "those that are there are not to blame"


def test_the_node_missing_from_an_exact_world_is_named_under_slurm(world, said, change):
    job = world(*[exact(4, *C10D)] * 3, **STEP)
    job = change.node(job, 2, name="node4")
    (found,), exit_code = said(job)
    assert (found.rule, found.nodes, exit_code) == ("torchrun-nnodes-mismatch", ("node3",), 20)
    assert found.fix.commands[0] == "srun --overlap --jobid=77 --ntasks-per-node=1 date +%s.%N"


def test_clock_skew_explains_a_world_that_lacks_nodes(world, said, change):
    job = change.process(world(*[exact(4, *C10D)] * 3), [4, 5], clock_ahead_seconds=-400.0)
    (found,), exit_code = said(job)
    assert (found.rule, found.severity, found.nodes, exit_code) == ("elastic-clock-skew", "error", ("node3",), 20)
    assert "400.0 s behind" in found.message
    assert "the world has 3 of 4 nodes" in found.message

    whole = change.process(world(*[exact(3, *C10D)] * 3), [4, 5], clock_ahead_seconds=-400.0)
    (found,), exit_code = said(whole)
    assert (found.rule, found.severity, exit_code) == ("elastic-clock-skew", "warning", 0)


def test_a_number_of_nodes_set_elsewhere_is_no_contradiction(world, said):
    given = ("launch", "--num_machines=2", "--multi_gpu")
    assert said(world(given, ("launch", "--multi_gpu"), program="accelerate")) == ([], 0)
    assert said(world((), (), PET_NNODES="2")) == ([], 0)


def test_different_max_restarts_are_a_warning_that_names_the_odd_node(world, said):
    (found,), exit_code = said(world(exact(3), exact(3, "--max-restarts=3"), exact(3, "--max-restarts", "0")))
    assert (found.rule, found.severity, found.ranks, exit_code) == ("torchrun-options-differ", "warning", (2, 3), 0)
    assert "--max-restarts 0 on node1 and node3; --max-restarts 3 on node2" in found.message


def test_two_names_of_one_endpoint_are_an_info(world, said):
    other = ("--rdzv-backend", "c10d", "--rdzv-endpoint=localhost:29400", "--rdzv-id", "7")
    (found,), exit_code = said(world(exact(2, *other), exact(2, *C10D)))
    assert (found.rule, found.severity, exit_code) == ("torchrun-options-differ", "info", 0)
