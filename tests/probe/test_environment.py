from __future__ import annotations

import msgspec
import pytest

from distcheck.probe.environment import collect, redacted


def test_only_variables_that_affect_start_up_are_collected():
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
def test_a_variable_that_looks_like_a_secret_loses_its_value(name):
    assert collect({name: "hunter2"}) == {name: "(redacted)"}


def test_credentials_in_a_url_are_redacted():
    assert collect({"https_proxy": "http://me:pass@proxy:3128"}) == {"https_proxy": "http://(redacted)@proxy:3128"}


def test_invalid_or_very_long_values_can_be_encoded():
    seen = collect({"NCCL_X": "a\udcffb", "NCCL_LONG": "x" * 10000})
    msgspec.json.encode(seen)
    assert len(seen["NCCL_LONG"]) == 4096


def test_empty_and_unset_differ():
    assert collect({"RANK": ""}) == {"RANK": ""}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--api-key=hunter2"], ["train.py", "--api-key=(redacted)"]),
        (
            ["train.py", "--wandb_token", "hunter2", "--lr", "1"],
            ["train.py", "--wandb_token", "(redacted)", "--lr", "1"],
        ),
        (["env", "HF_TOKEN=hunter2", "python"], ["env", "HF_TOKEN=(redacted)", "python"]),
        (["sh", "-c", "export API_KEY='hunter2'; train"], ["sh", "-c", "export API_KEY='(redacted)'; train"]),
        (["sh", "-c", "train --password hunter2 --lr 1"], ["sh", "-c", "train --password (redacted) --lr 1"]),
        (["sh", "-c", "DISTCHECK_TOKEN=hunter2 srun x"], ["sh", "-c", "DISTCHECK_TOKEN=(redacted) srun x"]),
        (["curl", "https://me:hunter2@host/x"], ["curl", "https://(redacted)@host/x"]),
    ],
)
def test_secrets_on_a_command_line_keep_their_name_and_lose_their_value(words, shown):
    assert list(redacted(words)) == shown


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["torchrun", "--nnodes", "2", "--rdzv-endpoint", "a:1", "train.py", "--monkey", "7"],
        ["ssh", "-i", "key", "node1"],
        ["train.py", "--password", "--lr", "1"],
        ["curl", "https://host/x"],
    ],
)
def test_other_arguments_of_a_command_line_are_unchanged(words):
    assert list(redacted(words)) == words
