"""Which job ids identify a job: those that every rank of it has."""

from __future__ import annotations

import pytest

from distcheck.selection.job_ids import with_shared_ids
from distcheck.selection.placement import place

IDS = {"SLURM_JOB_ID": "42", "PBS_JOBID": "7.server", "LSB_JOBID": "9", "PMIX_NAMESPACE": "1"}
AGENT = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
OF_SEVERAL, ALONE = AGENT | {"WORLD_SIZE": "4"}, AGENT | {"WORLD_SIZE": "2"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "shared"),
    [
        pytest.param(ALONE, set(IDS), id="one agent of torchrun"),
        pytest.param(OF_SEVERAL, set(), id="agents that a shell started"),
        pytest.param(OF_SEVERAL | {"SLURM_STEP_NUM_NODES": "1"}, set(), id="an agent in salloc's own step"),
        pytest.param(OF_SEVERAL | {"SLURM_STEP_NUM_NODES": "2"}, set(IDS), id="agents that srun started"),
        pytest.param(OPENMPI, {"PMIX_NAMESPACE"}, id="Open MPI"),
        pytest.param({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, set(IDS), id="srun"),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "4"}, set(IDS), id="MPICH"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "4", "CROSS_RANK": "0"}, set(), id="DeepSpeed"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "4"}, set(), id="by hand"),
    ],
)
def test_a_job_id_counts_if_the_launcher_gives_it_to_every_rank(environ, shared):
    everything = environ | IDS | {"HOME": "/root"}
    kept = with_shared_ids(everything, place(everything))
    assert (set(IDS) & set(kept), kept["HOME"]) == (shared, "/root")
