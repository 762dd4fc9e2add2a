"""srun, mpirun and ssh that never return, print forever or leave children: ended in time, with nothing left."""

from __future__ import annotations

import os
from itertools import product

import pytest
from forms.sampled import sampled
from real.ended import BEYOND_SECONDS

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
STUBBORN = "trap '' TERM HUP INT USR1 USR2\n"
WAYS = {
    "never returns": f"{STUBBORN}while :; do sleep 1; done",
    "prints for ever": f"{STUBBORN}while :; do echo words without end; done",
    "prints a line without end": f"{STUBBORN}while :; do printf 'words without end '; done",
    "leaves children": f'{STUBBORN}sh -c "{STUBBORN}while :; do sleep 1; done" & wait; sleep 600',
}

IN_EVERY_CHANGE = [*(("ssh", way) for way in WAYS), ("srun", "never returns"), ("mpirun", "never returns")]


@pytest.mark.parametrize(("launcher", "way"), sampled(product(("ssh", "srun", "mpirun"), WAYS), *IN_EVERY_CHANGE))
def test_a_launcher_that_never_comes_to_its_end_is_ended_in_time(distcheck, tmp_path, launcher, way):
    program = tmp_path / "bin" / launcher
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.6" && exit\n{WAYS[way]}\n')
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"} | (SLURM if launcher == "srun" else {})
    words = [] if launcher == "srun" else ["--hosts", "node[1-2]", "--nproc", "1"]
    words += ["--launcher", "mpi"] if launcher == "mpirun" else []
    ended = distcheck("env", *words, "--timeout", "6", "--format", "json", env=env)
    assert (ended.code, ended.report["verdict"]) == (20, "unknown"), ended
    assert ended.seconds < 6 + BEYOND_SECONDS
    found = [f for f in ended.report["findings"] if f["severity"] == "error"]
    assert [f["rule"] for f in found] == ["launch-probe-silent"]
    assert found[0]["nodes"] == ["node1", "node2"]
