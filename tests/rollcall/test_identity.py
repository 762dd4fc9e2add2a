"""Which job a process belongs to, and what the network learns of it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.placement import Placement
from distcheck.rollcall import identity

PLACE = Placement(rank=0, world_size=2, launcher="by hand")


def test_a_job_is_known_by_its_scheduler_its_token_or_its_user():
    key = identity.job_key
    slurm = msgspec.structs.replace(PLACE, launcher="slurm")
    assert key({"SLURM_JOB_ID": "7"}, slurm) == "SLURM_JOB_ID=7"
    assert key({"SLURM_JOB_ID": "7"}, PLACE) == key({}, PLACE)
    assert key({"TORCHELASTIC_RUN_ID": "r"}, PLACE) != key({}, PLACE)


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
