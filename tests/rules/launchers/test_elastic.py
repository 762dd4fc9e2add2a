"""How torchelastic agents start their ranks."""

from __future__ import annotations

import pytest

from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent
from distcheck.rules.job.agents import restarted

NOTHING = Variables({})
C10D = ("--nnodes=2", "--rdzv-backend", "c10d", "--rdzv-endpoint=10.0.0.1:29400", "--rdzv-id", "7", "train.py")


@pytest.fixture
def under(job_of, change):
    """Build a healthy job under torchrun whose agents have these arguments."""

    def make(*arguments, nodes=2, per_node=2, program="torchrun", looks=("environment", "meeting"), gpus=0):
        job = job_of(nodes, per_node, "torchrun", looks, gpus=gpus)
        job = change.environment(job, None, TORCHELASTIC_RUN_ID="7")
        return change.process(job, None, agent=Agent(program=program, pid=9, arguments=arguments, exported=NOTHING))

    return make


@pytest.fixture
def only(judge):
    """Return the only finding of a job, or None."""

    def one(job):
        findings = judge(job).findings
        assert len(findings) < 2, findings
        return findings[0] if findings else None

    return one


def test_torchrun_nproc_mismatch_is_an_info_where_numbers_are_set(under, only):
    found = only(under(*C10D, per_node=(3, 2)))
    assert (found.rule, found.severity, found.nodes) == ("torchrun-nproc-mismatch", "info", ("node2",))
    assert "started 2 processes; other nodes have 3" in found.message


def test_torchrun_nproc_mismatch_is_a_warning_where_each_node_counts_its_gpus(under, only):
    found = only(under("--nproc-per-node=gpu", *C10D, per_node=(8, 7)))
    assert (found.rule, found.severity, found.nodes) == ("torchrun-nproc-mismatch", "warning", ("node2",))


@pytest.mark.parametrize("variable", ["NODE_RANK", "PET_NODE_RANK"])
@pytest.mark.parametrize("launcher", ["slurm", "by hand"])
def test_torchrun_node_rank_duplicated_before_torchrun_starts(job_of, change, judge, variable, launcher):
    job = change.environment(job_of(3, 1, launcher), None, **{variable: "0"})
    found = {f.rule: f for f in judge(job).findings}["torchrun-node-rank-duplicated"]
    assert (found.severity, found.ranks) == ("warning", (0, 1, 2))
    assert f"{variable} is 0" in found.message


def test_node_ranks_that_differ_are_silent(job_of, change, judge):
    job = job_of(3, 1, "slurm")
    for n in range(3):
        job = change.environment(job, n, NODE_RANK=str(n))
    assert judge(job).findings == ()


def test_an_inherited_node_rank_is_harmless_for_agents_that_met(under, change, judge):
    assert judge(change.environment(under(*C10D), None, NODE_RANK="0")).findings == ()


def test_torchrun_node_rank_with_c10d_reports_the_actual_node_rank(under, change, only):
    job = under(*C10D)
    for positions, wanted in (((0, 1), "1"), ((2, 3), "0")):
        other = Agent(program="torchrun", pid=9, arguments=("--node-rank", wanted, *C10D), exported=NOTHING)
        job = change.process(job, positions, agent=other)
    found = only(job)
    assert (found.rule, found.severity) == ("torchrun-node-rank-with-c10d", "info")
    assert "--node-rank 1 was ignored, GROUP_RANK is 0" in found.message


def test_a_node_rank_equal_to_the_actual_one_is_silent(under, change, only):
    job = under("--node-rank=0", *C10D)
    second = Agent(program="torchrun", pid=9, arguments=("--node-rank=1", *C10D), exported=NOTHING)
    assert only(change.process(job, [2, 3], agent=second)) is None


def test_torchrun_rdzv_id_shared_without_an_id(under, change, only):
    assert only(under(*C10D)) is None
    found = only(change.environment(under(*C10D[:4], "train.py"), None, TORCHELASTIC_RUN_ID="none"))
    assert (found.rule, found.severity) == ("torchrun-rdzv-id-shared", "info")


@pytest.mark.parametrize(("arguments", "fires"), [((), True), (("--use-env",), False), (("--use_env",), False)])
def test_launch_local_rank_arg_without_use_env(under, only, arguments, fires):
    found = only(under(*arguments, "--nproc-per-node=2", "train.py", nodes=1, program="launch"))
    assert (found is not None) == fires
    if found:
        assert (found.rule, found.severity, found.ranks) == ("launch-local-rank-arg", "info", (0, 1))


def test_elastic_restart_stale_on_a_restart_only(under, change, only):
    job = under("--max-restarts=3", "--standalone", "train.py", nodes=1)
    assert only(change.environment(job, None, TORCHELASTIC_RESTART_COUNT="0")) is None
    found = only(change.environment(job, None, TORCHELASTIC_RESTART_COUNT="2", TORCHELASTIC_MAX_RESTARTS="3"))
    assert (found.rule, found.severity) == ("elastic-restart-stale", "info")
    assert "restart 2 of at most 3" in found.message


@pytest.mark.parametrize(("ahead", "severity"), [(-40.0, "warning"), (12.5, "warning"), (3.0, "info"), (0.2, None)])
def test_elastic_clock_skew_is_graded_by_the_minimum_skew(under, change, only, ahead, severity):
    found = only(change.process(under(*C10D), [2, 3], clock_ahead_seconds=ahead))
    assert (found.severity if found else None) == severity
    if found:
        assert (found.rule, found.nodes) == ("elastic-clock-skew", ("node2",))
        assert ("behind" if ahead < 0 else "ahead of") in found.message


def test_the_suggested_keep_alive_tolerates_the_observed_skew(under, change, only):
    job = change.process(under("--rdzv-conf=timeout=900", *C10D), [2, 3], clock_ahead_seconds=-400.0)
    found = only(job)
    step, again = found.fix.commands
    conf, rest = again.removeprefix("torchrun --rdzv-conf=").split(" ", 1)
    assert (step, rest) == ("sudo chronyc makestep", " ".join(C10D))
    assert conf == "timeout=900,keep_alive_max_attempt=121"
    assert 5 * 121 > 400 / (2 / 3)
    patient = change.process(under(f"--rdzv-conf={conf}", *C10D), [2, 3], clock_ahead_seconds=-400.0)
    assert only(patient).severity == "info"
    assert "drops a node at 605 s" in only(patient).message
    both = change.process(change.process(under(*C10D, nodes=3), [2, 3], clock_ahead_seconds=-9.0), [4, 5],
                          clock_ahead_seconds=9.0)  # fmt: skip
    assert only(both).severity == "warning", "the two are 18 s apart"


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
    assert restarted(job, job.ranks[0], {"master-port": "29501"}) == line


def test_clocks_do_not_matter_to_the_static_rendezvous(under, change, only):
    job = change.process(under("--nnodes=2", "--master-addr=node1", "train.py"), [2, 3], clock_ahead_seconds=99.0)
    assert only(job) is None


def test_accelerate_num_processes_total(under, only):
    arguments = ("launch", "--num_machines=2", "--num_processes=4", "train.py")
    job = under(*arguments, program="accelerate", looks=("environment", "meeting", "gpu"), gpus=4)
    found = only(job)
    assert (found.rule, found.severity) == ("accelerate-num-processes-total", "warning")
    assert "--num_processes=8" in found.fix.commands[0]
    healthy = under(*arguments, program="accelerate", looks=("environment", "meeting", "gpu"), gpus=2)
    assert only(healthy) is None
