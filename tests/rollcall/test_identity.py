"""Which job a process belongs to, and what the network learns of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.placement import Placement
from distcheck.rollcall import identity
from distcheck.selection.placement import place

PLACE = Placement(rank=0, world_size=2, launcher="by hand")
AGENT = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
OF_SEVERAL, ALONE = AGENT | {"WORLD_SIZE": "4"}, AGENT | {"WORLD_SIZE": "2"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}


def test_a_job_is_known_by_its_scheduler_its_token_or_its_user():
    key = identity.job_key
    slurm = msgspec.structs.replace(PLACE, launcher="slurm")
    assert key({"SLURM_JOB_ID": "7"}, slurm) == "SLURM_JOB_ID=7"
    assert key({"SLURM_JOB_ID": "7"}, PLACE) == key({}, PLACE)
    assert key({"TORCHELASTIC_RUN_ID": "r"}, PLACE) != key({}, PLACE)


@pytest.mark.parametrize(
    ("environ", "shared"),
    [
        pytest.param(ALONE, "SLURM_JOB_ID=42", id="one agent of torchrun"),
        pytest.param(OF_SEVERAL, "torchrun none", id="agents that a shell started"),
        pytest.param(OF_SEVERAL | {"SLURM_STEP_NUM_NODES": "1"}, "torchrun none", id="an agent in salloc's own step"),
        pytest.param(OF_SEVERAL | {"SLURM_STEP_NUM_NODES": "2"}, "SLURM_JOB_ID=42", id="agents that srun started"),
        pytest.param(OPENMPI, "PMIX_NAMESPACE=1", id="Open MPI"),
        pytest.param({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "SLURM_JOB_ID=42", id="srun"),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "4"}, "SLURM_JOB_ID=42", id="MPICH"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "4", "CROSS_RANK": "0"}, "uid", id="DeepSpeed"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "4"}, "uid", id="by hand"),
    ],
)
def test_a_job_id_counts_if_the_launcher_gives_it_to_every_rank(environ, shared):
    ids = {"SLURM_JOB_ID": "42", "PBS_JOBID": "7.server", "LSB_JOBID": "9", "PMIX_NAMESPACE": "1"}
    everything = environ | ids
    assert identity.job_key(everything, place(everything)).startswith(shared)


def test_a_token_does_not_cross_the_network_as_a_plain_hash():
    name = identity.job_key({"DISTCHECK_TOKEN": "open sesame"}, PLACE)
    assert "sesame" not in name
    assert identity.public_key(name) != identity.public_key("token open sesame")
    assert identity.job_secret({"DISTCHECK_TOKEN": "open sesame"}).hex() not in name
    assert identity.job_secret({"DISTCHECK_TOKEN": ""}) is identity.job_secret({}) is None
    assert name == identity.job_key({"DISTCHECK_TOKEN": "open sesame"}, PLACE)
    assert name != identity.job_key({"DISTCHECK_TOKEN": "open sesam"}, PLACE)


@given(st.text())
def test_side_ports_are_below_the_ephemeral_range(job):
    ports = identity.side_ports(job)
    assert len(set(ports)) == identity.SIDE_DOORS
    assert 1024 < min(ports) <= max(ports) < 32768


def test_a_name_that_is_not_utf_8_is_a_name_like_others():
    name = identity.job_key({"TORCHELASTIC_RUN_ID": "caf\udce9"}, PLACE)
    assert identity.public_key(name) != identity.public_key(name.replace("\udce9", ""))
    assert len(identity.side_ports(name)) == identity.SIDE_DOORS
