from __future__ import annotations

import pytest

from distcheck.facts import Placement
from distcheck.placement import exported, integer, local_placements, place, rank_environment

RECORDED = {
    "torchrun": (
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
         "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        (5, 8, 1, 4, 1),
    ),
    "slurm": (
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"},
        (5, 8, 1, None, 1),
    ),
    "openmpi": (
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_NODE_RANK": "1"},
        (5, 8, 1, 4, None),
    ),
    "hydra": (
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
        (5, 8, 1, 4, None),
    ),
    "horovod": (
        {"HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
         "HOROVOD_CROSS_RANK": "1"},
        (5, 8, 1, 4, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("launcher", RECORDED)
def test_a_launchers_variables_place_a_rank(launcher):
    environ, expected = RECORDED[launcher]
    placed = place(environ)
    assert placed.launcher == launcher
    assert (
        placed.rank, placed.world_size, placed.local_rank, placed.local_world_size, placed.node_rank
    ) == expected  # fmt: skip


def test_the_variables_that_torch_reads_win_over_the_launchers():
    environ = RECORDED["slurm"][0] | {"RANK": "0", "WORLD_SIZE": "2"}
    assert (place(environ).rank, place(environ).world_size) == (0, 2)


def test_options_win_over_everything():
    placed = place({"RANK": "0", "WORLD_SIZE": "2"}, Placement(rank=3, world_size=4))
    assert (placed.rank, placed.world_size, placed.by_options) == (3, 4, True)


def test_a_batch_script_is_no_rank():
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}).launcher == "none"


def test_the_shell_of_salloc_is_no_rank_and_what_it_starts_is():
    shell = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_ID": "7"}
    assert (place(shell).launcher, place(shell).rank) == ("none", None)
    assert place(shell | {"SLURM_STEP_ID": "0"}).launcher == "slurm"
    assert place(shell | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).launcher == "openmpi"
    assert place(shell | {"RANK": "1", "WORLD_SIZE": "2"}).launcher == "by hand"


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), (" 3 ", 3), ("-1", -1), ("", None), (None, None), ("3.0", None), ("abc", None), ("1" * 30, None)],
)
def test_numbers_are_read_as_torch_reads_them(text, number):
    assert integer(text) == number


def test_a_rank_set_to_something_else_than_a_number_has_none():
    assert place({"RANK": "abc", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}).rank is None


def test_only_a_whole_placement_can_meet():
    whole = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert place(whole).can_meet
    for name in whole:
        assert not place({k: v for k, v in whole.items() if k != name}).can_meet
    assert not place(whole | {"MASTER_PORT": "70000"}).can_meet
    assert place(whole | {"RANK": "2"}).can_meet


def test_local_ranks_get_what_torchrun_would_set_and_nothing_inherited():
    inherited = {"RANK": "9", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "2", "HOME": "/root"}
    second = local_placements(2, "127.0.0.1", 29500)[1]
    assert rank_environment(inherited, second) == {
        "HOME": "/root", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip


def test_only_what_is_known_is_exported():
    assert exported(Placement(rank=1, world_size=2)) == {"RANK": "1", "WORLD_SIZE": "2"}


def test_an_address_that_is_no_text_can_still_travel():
    import msgspec

    msgspec.json.encode(place({"MASTER_ADDR": "node\udcff"}))
