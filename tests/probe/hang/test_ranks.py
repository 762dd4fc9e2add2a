"""A table of processes in, the running jobs out: who is a rank, and who is its helper, its wrapper or its launcher."""

from __future__ import annotations

import os
import shutil

import pytest

from distcheck.probe.hang.ranks import jobs, unreadable

AGENT = "python /venv/bin/torchrun --nproc-per-node 2 train.py"
SPAWN = "python -c from_multiprocessing.spawn_import_spawn_main --multiprocessing-fork"


def variables(rank, world=2, port=29511, **more):
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        **more,
    }


def under_torchrun(rank, world=2, **more):
    return variables(rank, world, TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE=world, **more)


def ranks(job):
    return {member.pid: member.rank for member in job.ranks}


def test_helpers_below_and_wrappers_above_are_no_ranks(table):
    (job,) = jobs(
        table(
            {
                10: (1, AGENT, {}, True),
                11: (10, "bash -c python train.py", under_torchrun(0), False, "bash"),
                12: (11, "python train.py", under_torchrun(0), True),
                13: (12, "python train.py", under_torchrun(0), True, "pt_data_worker"),
                14: (12, "sleep 9", under_torchrun(0), False, "sleep"),
                15: (10, "python train.py", under_torchrun(1), True),
            }
        )
    )
    assert ranks(job) == {12: 0, 15: 1}
    assert (job.name, job.world_size, job.local, job.launcher) == ("127.0.0.1:29511", 2, True, "torchrun")


def test_two_jobs_are_told_apart_by_port_and_by_parent(table):
    found = jobs(
        table(
            {
                10: (1, "python a.py", variables(0), True),
                11: (1, "python a.py", variables(1), True),
                20: (1, "python b.py", variables(0, port=29512), True),
                30: (9, "python a.py", variables(0), True),
            }
        )
    )
    assert [ranks(job) for job in found] == [{10: 0, 11: 1}, {20: 0}, {30: 0}]


def test_a_rank_that_is_there_twice_is_of_one_job_as_long_as_its_world_has_room(table):
    (twice,) = jobs(table({9 + n: (90 + n, "python a.py", variables(0, 3), True) for n in (1, 2)}))
    assert (ranks(twice), twice.world_size) == ({10: 0, 11: 0}, 3)


def test_ranks_by_hand_with_another_meeting_place_are_of_one_job(table):
    processes = {10 + n: (90 + n, "python a.py", variables(n, 3, port=29511 + (n == 1)), True) for n in range(3)}
    other = {20: (1, "python b.py", variables(1, 3, port=29513), True)}
    job, _ = jobs(table({**processes, **other}))
    assert [(m.rank, m.meets) for m in job.ranks] == [
        (0, "127.0.0.1:29511"),
        (1, "127.0.0.1:29512"),
        (2, "127.0.0.1:29511"),
    ]


def test_a_launcher_with_a_node_s_variables_is_no_rank(table):
    step = {"SLURM_STEP_ID": 0, "SLURM_PROCID": 1, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 7}
    processes = {10: (1, AGENT, step, True), 11: (10, "python train.py", under_torchrun(2, 4, **step), True)}
    assert [ranks(job) for job in jobs(table(processes))] == [{11: 2}]


def test_a_pod_s_rank_variables_are_those_of_its_node(table):
    processes = {
        10: (1, AGENT, {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "pod-0", "MASTER_PORT": 29511}, True),
        11: (10, "python train.py", under_torchrun(2, 4), True),
    }
    assert [ranks(job) for job in jobs(table(processes))] == [{11: 2}]


def test_slurm_s_variables_name_ranks_that_have_no_others(table):
    step = {"SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 7}
    processes = {pid: (1, "python train.py", {**step, "SLURM_PROCID": pid - 10}, True) for pid in (10, 11)}
    (job,) = jobs(table(processes))
    assert (ranks(job), job.world_size, job.launcher) == ({10: 0, 11: 1}, 2, "slurm")


def test_children_of_multiprocessing_are_numbered_in_their_order(table):
    processes = {
        10: (1, "python train.py", {}, True),
        11: (10, "python -c resource_tracker", {}, False),
        12: (10, SPAWN, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29511}, True),
        13: (10, "", None, False, "python", "Z"),
        14: (10, SPAWN, {}, True),
        15: (14, SPAWN, {}, True, "pt_data_worker"),
    }
    (job,) = jobs(table(processes))
    assert (ranks(job), job.world_size, job.nodes[0].ended) == ({12: 0, 14: 2}, 3, (13,))


def test_children_of_a_rank_and_of_other_programs_are_no_ranks(table):
    processes = {
        10: (1, "python train.py", variables(0, 1), True),
        11: (10, "python train.py", variables(0, 1), True),
        20: (1, "python -m pytest", {}, True),
        21: (20, "python -c exec", {}, True),
    }
    assert [ranks(job) for job in jobs(table(processes))] == [{10: 0}]


def test_a_rank_that_has_not_loaded_torch_is_one(table):
    processes = {10: (1, "python train.py", variables(0), True), 11: (1, "python train.py", variables(1), False)}
    assert [ranks(job) for job in jobs(table(processes))] == [{10: 0, 11: 1}]


def test_zombies_are_those_that_ended(table):
    processes = {
        10: (1, AGENT, {}, True),
        11: (10, "python train.py", under_torchrun(0), True),
        12: (10, "", None, False, "python", "Z"),
        900: (10, "", None, False, "python", "Z"),  # started 9 s later: another one's
    }
    (job,) = jobs(table(processes))
    assert (ranks(job), job.nodes[0].ended) == ({11: 0}, (12,))


@pytest.mark.parametrize("pid", [10, 12, 13], ids=["its launcher", "the rank", "its helper"])
def test_a_named_process_selects_its_job(table, pid):
    processes = {
        10: (1, AGENT, {}, True),
        12: (10, "python train.py", under_torchrun(0), True),
        13: (12, "python train.py", under_torchrun(0), True),
        20: (1, "python other.py", variables(0, port=29512), True),
    }
    assert [ranks(job) for job in jobs(table(processes), (pid,))] == [{12: 0}]


def test_a_named_process_that_no_variable_names_is_a_rank(table):
    (job,) = jobs(table({10: (1, "python a.py", {}, True), 20: (1, "python b.py", {}, True)}), (20, 10))
    assert (ranks(job), job.world_size) == ({10: 0, 20: 1}, 2)


def test_python_processes_that_may_not_be_read_are_known(table):
    processes = {
        10: (1, "python train.py", None, True),
        11: (1, "sshd", None, False, "sshd"),
        os.getpid(): (1, "python", None, False),
    }
    processes[12] = (1, "python ends.py", None, False)
    seen = table(processes)
    shutil.rmtree(seen.root / "12")
    assert unreadable(seen, own_only=False) == (10,)
