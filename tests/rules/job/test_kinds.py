"""Ranks that are alike are judged once, and no finding changes by it."""

from __future__ import annotations

import pytest
from made import real_job
from made.jobs import LAUNCHERS

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries
from distcheck.facts.network import Resolution
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Agent, Installed
from distcheck.rules import all_rules
from distcheck.rules.diagnose import diagnose
from distcheck.rules.job import kinds
from distcheck.rules.job.kinds import Kind, ranks_by, ranks_with

ODD = 4
"""A rank of the second node, whose ranks are 3 to 5."""
VARIABLES = (
    {"RANK": ""}, {"RANK": "x"}, {"RANK": None, "SLURM_PROCID": None}, {"LOCAL_RANK": "1.5"}, {"WORLD_SIZE": "1"},
    {"MASTER_PORT": "0"}, {"MASTER_PORT": "29501"}, {"MASTER_ADDR": "node[1-2]"}, {"MASTER_ADDR": "", "RANK": ""},
    {"SLURM_CPUS_PER_TASK": "64"}, {"NCCL_NET_PLUGIN": "aws-ofi"}, {"NCCL_BUFFSIZE": "4M"},
    {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"CUDA_LAUNCH_BLOCKING": "1"},
)  # fmt: skip


@pytest.fixture
def job(job_of):
    return job_of(3, 3, "slurm", real_job.LOOKS, gpus=4)


@pytest.fixture(scope="module")
def real():
    return real_job.healthy(3, 2)


@pytest.fixture
def one_by_one(monkeypatch):
    """Judge a job as if no two ranks were alike."""

    def judged(job):
        with monkeypatch.context() as patch:
            patch.setattr(kinds, "kinds", lambda job: tuple(Kind(rank, [n]) for n, rank in enumerate(job.ranks)))
            return diagnose(job, rules=all_rules())

    return judged


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_differ_in_their_numbers_only_are_alike(job_of, launcher):
    (kind,) = kinds.kinds(job_of(3, 3, launcher))
    assert kind.places == list(range(9))


def test_the_ranks_of_a_real_job_are_alike(real):
    assert len(kinds.kinds(real)) == 1


@pytest.mark.parametrize(
    "variables",
    [*VARIABLES, {"HOSTNAME": "here"}, {"RANK": "99999999999"}],
    ids=lambda variables: " ".join(f"{name}={value}" for name, value in variables.items()),
)
def test_a_rank_with_another_variable_is_of_another_kind(job, change, variables):
    assert [k.places for k in kinds.kinds(change.environment(job, ODD, **variables))] == [
        [n for n in range(9) if n != ODD],
        [ODD],
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"installed": Installed(python="3.12.1", prefix="/opt", torch=Missing(reason="no"))},
        {"libraries": Libraries(nccl="/usr/lib/libnccl.so.2", version="2.20.5")},
        {"agent": Agent("torchrun", 7, (), Missing(reason="no"))},
        {"ancestors": ("ray",)},
        {"etcd": False},
        {"memory_policy_error": "denied"},
        {"master_resolution": Resolution(name="node1", addresses=("10.0.0.9",), seconds=0.001)},
        {"master_resolution": Missing(reason="unknown")},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_rank_of_another_process_is_of_another_kind(job, change, fields):
    assert len(kinds.kinds(change.process(job, ODD, **fields))) == 2


@pytest.mark.parametrize(
    "fields", [{"torch": TorchBuild("2.12.0", None, None)}, {"python": "3.10.1"}, {"cpus": 3}, {"accelerator": "none"}],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_the_ranks_of_another_node_are_of_another_kind(job, change, fields):
    assert [k.places for k in kinds.kinds(change.node(job, 1, **fields))] == [[0, 1, 2, 6, 7, 8], [3, 4, 5]]


def test_how_long_a_look_up_took_makes_no_kind(job, change):
    slow = Resolution(name="node1", addresses=("10.0.0.1",), seconds=0.7)
    assert len(kinds.kinds(change.process(job, ODD, master_resolution=slow))) == 1


def test_groups_and_ranks_are_in_the_order_of_the_job(job, change):
    job = change.environment(change.environment(job, ODD, A="1"), 2, A="2", B="2")
    assert len(kinds.kinds(job)) == 3
    by_value = ranks_by(job, lambda r: r.environment.get("A") != "1")
    assert {odd: [r.placement.rank for r in ranks] for odd, ranks in by_value.items()} == {
        True: [0, 1, 2, 3, 5, 6, 7, 8],
        False: [4],
    }
    assert [r.placement.rank for r in ranks_with(job, lambda r: "A" in r.environment)] == [2, 4]
    assert ranks_with(job, lambda r: "C" in r.environment) == []
    assert ranks_by(job, lambda _: None) == {}


@pytest.mark.parametrize("fault", real_job.FAULTS)
def test_judging_kinds_finds_what_judging_each_rank_finds(one_by_one, real, fault):
    job = real_job.faulty(real, fault, 2)
    assert diagnose(job, rules=all_rules()) == one_by_one(job)


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_wrong_variables_are_found_in_kinds_as_rank_by_rank(one_by_one, job_of, change, launcher):
    healthy = job_of(3, [2, 3, 2], launcher, real_job.LOOKS, gpus=4)
    for variables in VARIABLES:
        for where in (ODD, (0, 3, 5), None):
            job = change.environment(healthy, where, **variables)
            assert diagnose(job, rules=all_rules()) == one_by_one(job), variables


def test_a_test_that_looks_at_a_number_is_noticed(one_by_one, job, monkeypatch):
    def wrong(job):
        raise AssertionError([r.placement.rank for r in ranks_with(job, lambda r: r.placement.rank == ODD)])
        yield

    rule = all_rules()[0]._replace(judge=wrong, look="environment")
    monkeypatch.setitem(globals(), "all_rules", lambda: (rule,))
    assert "[]" in diagnose(job, rules=[rule]).findings[0].message
    assert f"[{ODD}]" in one_by_one(job).findings[0].message
