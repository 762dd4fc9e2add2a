from __future__ import annotations

import msgspec
import pytest

from distcheck.probe.environment import collect


def test_only_variables_that_bear_on_start_up_are_collected():
    environ = {
        "RANK": "0",
        "NCCL_DEBUG": "INFO",
        "SLURM_JOB_ID": "7",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/root",
        "DB_URL": "u",
    }
    assert set(collect(environ)) == {"RANK", "NCCL_DEBUG", "SLURM_JOB_ID"}


@pytest.mark.parametrize("name", ["SLURM_JWT", "NCCL_API_TOKEN", "DISTCHECK_TOKEN", "UCX_PASSWORD", "FI_SECRET"])
def test_a_name_that_sounds_like_a_secret_keeps_its_name_and_loses_its_value(name):
    assert collect({name: "hunter2"}) == {name: "(redacted)"}


def test_credentials_in_a_url_are_cut_out():
    assert collect({"https_proxy": "http://me:pass@proxy:3128"}) == {"https_proxy": "http://(redacted)@proxy:3128"}


def test_values_that_are_no_text_or_very_long_can_travel():
    seen = collect({"NCCL_X": "a\udcffb", "NCCL_LONG": "x" * 10000})
    msgspec.json.encode(seen)
    assert len(seen["NCCL_LONG"]) == 4096


def test_empty_is_told_from_unset():
    assert collect({"RANK": ""}) == {"RANK": ""}
