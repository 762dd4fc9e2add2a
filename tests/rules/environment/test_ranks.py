"""The ranks of a job: each there once, in one world."""

from __future__ import annotations

import pytest
from rules.conftest import CONTRACT

from distcheck.facts.placement import Placement, Variables
from distcheck.facts.rank import Agent


@pytest.mark.parametrize("value", ["-1", "4", "17"])
def test_a_rank_outside_the_world_is_an_error(job_of, change, judge, value):
    diagnosis = judge(change.environment(job_of(nodes=2), 3, RANK=value), *CONTRACT)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.ranks, finding.nodes) == ("env-rank-out-of-range", (int(value),), ("node2",))
    assert diagnosis.verdict.exit_code == 30
    assert [n.ranks for n in diagnosis.not_checked] == [(3,)]


def numbered(change, job, *ranks, **variables):
    """Return the job whose processes have these ranks, and these variables."""
    for position, rank in enumerate(ranks):
        job = change.environment(job, position, RANK=str(rank))
    return change.environment(job, range(len(ranks)), **variables)


BEYOND, TWICE = "env-rank-out-of-range", "env-rank-duplicate"


@pytest.mark.parametrize(
    ("shape", "ranks", "world", "rule", "words", "commands"),
    [
        ((4,), (0, 1, 2, 3), 2, BEYOND, "4 processes have ranks 0-3, but WORLD_SIZE is 2", ("export WORLD_SIZE=4",)),
        ((4,), (0, 1, 2, 5), 2, BEYOND, "4 processes have ranks 0-2,5, but WORLD_SIZE is 2", ("export WORLD_SIZE=6",)),
        (
            (2, 2), (1, 2, 3, 4), 4, BEYOND, "the ranks are counted from 1",
            tuple(f"export RANK={n}  # node{1 + n // 2}, process {100 + n}" for n in range(4)),
        ),
        ((2, 2), (0, 1, 2, 4), 4, BEYOND, "expected 0 to 3", ("export RANK=3  # node2, process 103",)),
        (
            (2, 2), (0, 1, -1, 7), 4, BEYOND, "ranks -1,7 (node2) are out of range",
            ("export RANK=2  # node2, process 102", "export RANK=3  # node2, process 103"),
        ),
        ((2,), (0, 0), 2, TWICE, "processes 100 and 101 on node1;", ("export RANK=1  # node1, process 101",)),
        ((3,), (0, 1, 1), 3, TWICE, "twice, by processes 101 and 102", ("export RANK=2  # node1, process 102",)),
        ((3,), (0, 1, 1), 2, TWICE, "rank 1 is claimed", ("# end node1, process 102",)),
        (
            (2, 2), (0, 1, 0, 1), 4, TWICE, "process 100 on node1 and process 102 on node2",
            ("export RANK=2  # node2, process 102", "export RANK=3  # node2, process 103"),
        ),
        (
            (2, 2), (0, 1, 0, 1), 2, TWICE, "process 100 on node1 and process 102 on node2",
            ("export RANK=$((${NODE_RANK:?} * 2 + ${LOCAL_RANK:?}))", "export WORLD_SIZE=4"),
        ),
    ],
)  # fmt: skip
def test_processes_that_lack_a_rank_of_their_own_get_the_missing_ones(
    job_of, change, only, shape, ranks, world, rule, words, commands
):
    job = numbered(change, job_of(per_node=shape), *ranks, WORLD_SIZE=str(world))
    finding, exit_code = only(job)
    assert (finding.rule, exit_code) == (rule, 30)
    assert words in finding.message
    assert finding.fix.commands == commands


ALONE, MISMATCH = "env-world-size-1-everywhere", "env-world-size-mismatch"


@pytest.mark.parametrize(
    ("shape", "launcher", "where", "variables", "rule", "ranks", "words"),
    [
        ((3, 3), "by hand", 5, {"WORLD_SIZE": "8"}, MISMATCH, (5,), "rank 5 (node2 pid 105) has WORLD_SIZE 8"),
        ((4, 2), "by hand", (4, 5), {"WORLD_SIZE": "2"}, MISMATCH, (4, 5), "ranks 4-5 (node2) have WORLD_SIZE 2"),
        ((2,), "by hand", None, {"WORLD_SIZE": "0"}, "env-world-size-zero-neg", (0, 1), "expected 1 or more"),
        ((2,), "by hand", None, {"WORLD_SIZE": "-4"}, "env-world-size-zero-neg", (0, 1), "WORLD_SIZE is -4"),
        ((1, 1), "by hand", None, {"RANK": "0", "WORLD_SIZE": "1"}, ALONE, (0,), "2 processes take part"),
        ((8,) * 8, "by hand", range(40), {"RANK": "5"}, TWICE, (5,), "rank 5 is claimed 40 times"),
        ((2, 2), "slurm", None, {"RANK": "1"}, TWICE, (1,), "expected one process per rank"),
        ((2, 2), "slurm", 3, {"RANK": "4"}, BEYOND, (4,), "rank 4"),
        ((2, 2), "slurm", None, {"WORLD_SIZE": "2"}, BEYOND, (0, 1, 2, 3), "4 processes have ranks 0-3"),
    ],
)
def test_ranks_that_form_no_world_are_one_error(
    job_of, change, only, shape, launcher, where, variables, rule, ranks, words
):
    finding, exit_code = only(change.environment(job_of(per_node=shape, launcher=launcher), where, **variables))
    assert (finding.rule, finding.ranks, exit_code) == (rule, ranks, 30)
    assert words in finding.message
    own = {"RANK": "export RANK=$SLURM_PROCID", "WORLD_SIZE": "export WORLD_SIZE=$SLURM_NTASKS"}
    unset = "unset RANK WORLD_SIZE LOCAL_RANK"
    if launcher == "slurm":
        assert finding.fix.commands[0] == (unset if rule == TWICE else own[next(iter(variables))])


@pytest.mark.parametrize("launcher", ["slurm", "openmpi", "hydra"])
def test_one_of_many_tasks_has_world_size_1(job_of, change, only, launcher):
    job = change.keep(job_of(nodes=2, launcher=launcher), 0)
    finding, exit_code = only(change.environment(job, 0, RANK="0", WORLD_SIZE="1"))
    assert (finding.rule, exit_code) == (ALONE, 30)


@pytest.mark.parametrize(
    ("shape", "launcher", "there", "ranks"),
    [
        ((2,) * 4, "by hand", (0, 2, 3, 4, 5), (1, 6, 7)),
        *(((2, 2), launcher, (0, 1), (2, 3)) for launcher in ("openmpi", "hydra", "horovod", "slurm")),
    ],
)
def test_missing_ranks_are_named_and_a_retry_may_help(job_of, change, only, shape, launcher, there, ranks):
    job = change.keep(job_of(per_node=shape, launcher=launcher), *there)
    finding, exit_code = only(change.environment(job, None, VC_TRAINER_NUM="2"))
    assert (finding.rule, finding.ranks, exit_code) == ("env-rank-missing", ranks, 20)
    assert (finding.scope, finding.confirmed) == ("node", False)


def test_the_terminal_of_a_process_names_it_where_no_other_process_has_it(job_of, change, only):
    job = numbered(change, job_of(per_node=(3,)), 0, 0, 0)
    job = change.process(change.process(job, 1, terminal="pts/3"), 2, terminal="pts/4")
    commands = ("export RANK=1  # node1, terminal pts/3", "export RANK=2  # node1, terminal pts/4")
    assert only(job)[0].fix.commands == commands
    assert only(change.process(job, 2, terminal="pts/3"))[0].fix.commands[0] == "export RANK=1  # node1, process 101"


def test_the_process_that_came_first_keeps_its_rank(job_of, change, only):
    job = change.process(numbered(change, job_of(), 0, 0), 0, arrived_seconds=3.0)
    assert only(change.process(job, 1, arrived_seconds=0.0))[0].fix.commands == ("export RANK=1  # node1, process 100",)


def test_a_second_process_gets_a_missing_rank_though_more_ranks_are_missing(job_of, change, judge):
    findings = judge(numbered(change, job_of(), 0, 0, WORLD_SIZE="4"), *CONTRACT).findings
    assert {f.rule: f.fix.commands for f in findings}[TWICE] == ("export RANK=1  # node1, process 101",)


def test_a_rank_given_as_an_option_is_corrected_as_one(job_of, change, only):
    job = change.environment(job_of(), None, RANK=None, WORLD_SIZE=None)
    for position in range(2):
        job = change.environment(job, position, Placement(rank=0, world_size=2))
    assert only(job)[0].fix.commands == ("# pass --rank 1  # node1, process 101",)


def test_two_agents_with_one_node_rank_get_the_free_one(job_of, change, only):
    agent = Agent("torchrun", 9, ("--node-rank=0", "--nnodes=2", "train.py"), Variables({}))
    job = change.process(job_of(nodes=2, launcher="torchrun"), None, agent=agent)
    for position in (2, 3):
        job = change.environment(job, position, RANK=str(position - 2), GROUP_RANK="0", ROLE_RANK=str(position - 2))
    assert only(job)[0].fix.commands == ("torchrun --node-rank=1 --nnodes=2 train.py  # on node2",)


def test_a_duplicate_rank_names_every_process(job_of, change, judge):
    diagnosis = judge(change.environment(job_of(nodes=2), 3, RANK="1"), *CONTRACT)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.ranks, diagnosis.verdict.exit_code) == ("env-rank-duplicate", (1,), 30)
    assert finding.evidence == {
        "node1 pid 101": "rank 1, local rank 1: python -m distcheck env",
        "node2 pid 103": "rank 1, local rank 1: python -m distcheck env",
    }
    assert [(n.rule, n.ranks) for n in diagnosis.not_checked] == [("env-rank-missing", (3,))]


def test_a_missing_rank_is_explained_by_a_process_without_a_rank(job_of, change, judge):
    diagnosis = judge(change.environment(job_of(nodes=2), 3, RANK="x"), *CONTRACT)
    assert [f.rule for f in diagnosis.findings] == ["env-not-integer"]
    assert [(n.rule, n.ranks) for n in diagnosis.not_checked] == [("env-rank-missing", (3,))]


def test_more_ranks_missing_than_explained_are_still_missing(job_of, change, judge):
    job = change.keep(change.environment(job_of(nodes=2), 1, RANK="x"), 0, 1, 2)
    diagnosis = judge(job, *CONTRACT)
    assert {f.rule for f in diagnosis.findings} == {"env-not-integer", "env-rank-missing"}
    assert "1 of them may be" in next(f for f in diagnosis.findings if f.rule == "env-rank-missing").message


def test_without_a_roll_call_the_other_ranks_are_unknown(job_of, change, judge):
    job = change.job(change.keep(job_of(nodes=2), 2), met=False)
    diagnosis = judge(job, *CONTRACT)
    assert (diagnosis.findings, diagnosis.verdict.exit_code) == ((), 20)
    assert {n.rule for n in diagnosis.not_checked} == {
        "env-rank-missing",
        "env-rank-duplicate",
        "env-world-size-mismatch",
    }
    assert "rank 0 was not reached" in diagnosis.not_checked[0].reason


def test_a_tie_of_world_sizes_names_both_sides(job_of, change, judge):
    diagnosis = judge(change.environment(job_of(nodes=2), (2, 3), WORLD_SIZE="8"), *CONTRACT)
    assert [(f.rule, f.ranks) for f in diagnosis.findings] == [("env-world-size-mismatch", (0, 1, 2, 3))]
    assert [n.rule for n in diagnosis.not_checked] == ["env-rank-missing"]


def test_a_world_larger_than_the_tasks_of_srun(job_of, change, only):
    finding, exit_code = only(change.environment(job_of(nodes=2, launcher="slurm"), None, WORLD_SIZE="16"))
    assert (finding.rule, exit_code) == ("env-world-size-not-product", 30)
    assert "WORLD_SIZE is 16, but SLURM_NTASKS counts 4 processes, and 4 processes joined" in finding.message
    assert finding.fix.commands == ("export WORLD_SIZE=$SLURM_NTASKS", "srun distcheck env --nproc 4")


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("shape", "variables", "words"),
    [
        ((2,), {"VC_TRAINER_NUM": "2"}, "VC_TRAINER_NUM counts 2 processes, and 2 processes joined"),
        ((1, 1), {"VC_MASTER_NUM": "1", "VC_WORKER_NUM": "1", **POD},
         "VC_MASTER_NUM and VC_WORKER_NUM count 2 pods, and 2 processes joined"),
        ((2,), {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"},
         "PET_NNODES x PET_NPROC_PER_NODE counts 2 processes, and 2 processes joined"),
        ((1, 1), {"PET_NNODES": "2", "JOB_COMPLETION_INDEX": "0", **POD},
         "PET_NNODES counts 2 pods, and 2 processes joined"),
        ((2,), {"SLURM_NTASKS": "2", "SLURM_NNODES": "1"}, "SLURM_NTASKS counts 2 processes, and 2 processes joined"),
        ((1, 1), {"SM_HOSTS": '["algo-1", "algo-2"]'}, "SM_HOSTS counts 2 nodes, and 2 processes joined"),
        # Something counts as many as WORLD_SIZE, others than joined, or pods that may start several ranks each.
        ((2,), {}, ""),
        ((2,), {"VC_TRAINER_NUM": "4"}, ""),
        ((2,), {"VC_TRAINER_NUM": "3"}, ""),
        ((2,), {"VC_TRAINER_NUM": "x"}, ""),
        ((2,), {"VC_TRAINER_NUM": "2", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}, ""),
        ((2,), {"VC_TRAINER_NUM": "2", **POD}, ""),
        ((2,), {"PET_NNODES": "2"}, ""),
        ((2,), {"PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "auto"}, ""),
        ((2,), {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"}, ""),
        ((1,), {"SLURM_NTASKS": "1", "SLURM_NNODES": "1", "NNODES": "1"}, ""),
        ((1, 1), {"SM_HOSTS": "algo-1"}, ""),
    ],
)  # fmt: skip
def test_a_world_size_beyond_what_others_count_is_the_fault(job_of, change, judge, shape, variables, words):
    address = {"WORLD_SIZE": "4", "MASTER_ADDR": "node1"}
    job = change.environment(job_of(per_node=shape), None, **address, **variables)
    diagnosis = judge(job, *CONTRACT)
    exit_code = diagnosis.verdict.exit_code
    (finding,) = [f for f in diagnosis.findings if f.severity == "error"]
    if words:
        assert (finding.rule, finding.scope, exit_code) == ("env-world-size-not-product", "job", 30)
        assert finding.message == f"WORLD_SIZE is 4, but {words}"
        assert finding.fix.commands[0] == "export WORLD_SIZE=2"
        assert ("torchrun --nnodes=2 --node-rank=$RANK --nproc-per-node=2 " in finding.fix.commands[-1]) is (
            len(shape) > 1
        )
    else:
        assert (finding.rule, exit_code) == ("env-rank-missing", 20)


def test_what_counts_those_that_came_does_not_hold_where_higher_ranks_came(job_of, change, only):
    job = change.environment(job_of(per_node=(1, 1)), None, WORLD_SIZE="4", NNODES="2")
    finding, _ = only(change.environment(job, 1, RANK="2"))
    assert (finding.rule, finding.ranks) == ("env-rank-missing", (1, 3))


@pytest.mark.parametrize(("hosts", "rule"), [(2, "env-world-size-not-product"), (4, "env-rank-missing")])
def test_the_hosts_of_a_hostfile_count_the_processes_too(job_of, change, only, hosts, rule):
    job = change.environment(job_of(per_node=(1, 1)), None, WORLD_SIZE="4")
    finding, exit_code = only(change.process(job, None, hosts_listed={"PBS_NODEFILE": hosts}))
    assert (finding.rule, exit_code) == (rule, 30 if hosts == 2 else 20)


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        ("by hand", {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}),  # a batch shell is no rank
        ("by hand", {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967290"}),  # nor is salloc's
        ("torchrun", {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}),
        ("slurm", {}),
        ("distcheck", {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"}),
    ],
)
def test_a_world_of_one_on_purpose_is_silent(job_of, change, silent, launcher, more):
    assert silent(change.environment(job_of(per_node=1, launcher=launcher), 0, **more))
