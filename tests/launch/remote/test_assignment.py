"""A probe's assignment: it survives the transport, and makes the right ranks of a task."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.asked import Asked
from distcheck.launch.remote import assignment
from distcheck.launch.remote.assignment import Assignment

ASKED = Asked("gate", ("environment", "meeting"), timeout_seconds=30, sizes_bytes=(4, 8), select=("env-rank-unset",))
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


def of(**fields) -> Assignment:
    return Assignment(**{"asked": ASKED, "master_addr": "node1", "master_port": 29500, **fields})


def ranks(placements) -> list[tuple]:
    return [(p.rank, p.local_rank, p.node_rank, p.local_world_size, p.world_size) for p in placements]


@given(
    st.lists(st.integers(1, 9), max_size=20),
    st.dictionaries(st.text(min_size=1), st.text(), max_size=5),
    st.none() | st.integers(0, 30),
)
def test_an_assignment_survives_as_one_argument_that_no_shell_changes(counts, environment, task):
    sent = of(ranks_by_task=tuple(counts), environment=environment, task=task, iterations=3, ends_with_stdin=True)
    word = assignment.encode(sent)
    assert set(word) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=")
    assert assignment.decode(word + "\n") == sent


@pytest.mark.parametrize("word", ["", "\n", "!", "é", "AAAA", base64.urlsafe_b64encode(b"\x80").decode(), "A" * 5])
def test_an_invalid_assignment_is_an_error(word):
    with pytest.raises(ValueError, match="cannot read the assignment: "):
        assignment.decode(word)


def test_what_a_newer_version_adds_is_passed_over():
    told = msgspec.msgpack.decode(base64.urlsafe_b64decode(assignment.encode(of(task=1))))
    told["colour"] = "green"
    assert assignment.decode(base64.urlsafe_b64encode(msgspec.msgpack.encode(told)).decode()) == of(task=1)


def test_inherited_rank_variables_are_dropped_and_others_kept():
    inherited = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1",
        "PET_NNODES": "2", "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0",
        "PATH": "/bin", "NCCL_DEBUG": "INFO", "SLURM_PROCID": "0",
    }  # fmt: skip
    kept = assignment.environment(of(environment={"NCCL_DEBUG": "WARN", "UCX_TLS": "tcp"}), inherited)
    assert kept == {"PATH": "/bin", "NCCL_DEBUG": "WARN", "SLURM_PROCID": "0", "UCX_TLS": "tcp"}


def test_a_variable_that_is_carried_on_purpose_is_there_even_if_it_speaks_of_ranks():
    assert assignment.environment(of(environment={"RANK": "0"}), {"RANK": "7"}) == {"RANK": "0"}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (0, [(0, 0, 0, 2, 6), (1, 1, 0, 2, 6)]),
        (1, [(2, 0, 1, 1, 6)]),
        (2, [(3, 0, 2, 3, 6), (4, 1, 2, 3, 6), (5, 2, 2, 3, 6)]),
    ],
)
def test_a_task_has_the_ranks_after_those_of_the_tasks_before_it(task, expected):
    placements = assignment.placements(of(task=task, ranks_by_task=(2, 1, 3)), {})
    assert ranks(placements) == expected
    assert {(p.master_addr, p.master_port, p.launcher) for p in placements} == {("node1", 29500, "distcheck")}


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12))
def test_all_tasks_together_have_every_rank_once(counts):
    shape = tuple(counts)
    placed = [p for t in range(len(shape)) for p in assignment.placements(of(task=t, ranks_by_task=shape), {})]
    assert [p.rank for p in placed] == list(range(sum(shape)))
    assert {p.world_size for p in placed} == {sum(shape)}


@pytest.mark.parametrize(("environ", "launcher"), [(HYDRA, "hydra"), (SLURM | {"SLURM_PROCID": "1"}, "slurm")])
def test_the_launcher_sets_the_task_if_the_assignment_does_not(environ, launcher):
    placements = assignment.placements(of(ranks_by_task=(2, 2)), environ)
    assert ranks(placements) == [(2, 0, 1, 2, 4), (3, 1, 1, 2, 4)]
    assert {p.launcher for p in placements} == {launcher}


def test_with_one_task_per_rank_the_launcher_sets_ranks_and_the_assignment_the_master():
    (placement,) = assignment.placements(of(), SLURM)
    assert ranks([placement]) == [(3, 1, 1, 2, 4)]
    assert (placement.master_addr, placement.master_port, placement.launcher) == ("node1", 29500, "slurm")
    assert not placement.master_derived, "it was said, not derived"


@pytest.mark.parametrize(
    ("fields", "environ", "words"),
    [
        ({}, {}, "cannot determine the task number"),
        ({"ranks_by_task": (1, 1)}, {}, "this is task None, expected 0 to 1"),
        ({"ranks_by_task": (1, 1)}, SLURM, "this is task 3, expected 0 to 1"),
        ({"ranks_by_task": (1, 1), "task": 2}, {}, "this is task 2, expected 0 to 1"),
    ],
)
def test_a_surplus_task_is_an_error(fields, environ, words):
    with pytest.raises(ValueError, match=words):
        assignment.placements(of(**fields), environ)
