"""What a node remembers of an attempt of torchrun."""

from __future__ import annotations

import json

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent, RunAttempt
from distcheck.probe import attempts, process

ATTEMPT = RunAttempt(3, {"node1|9": "node1"})


def test_an_attempt_is_read_by_the_agent_that_wrote_it_and_by_no_other(tmp_path):
    assert attempts.read(tmp_path, "9 1234") == RunAttempt(0)
    attempts.write(tmp_path, "9 1234", RunAttempt(2))
    attempts.write(tmp_path, "9 1234", ATTEMPT)
    assert attempts.read(tmp_path, "9 1234") == ATTEMPT
    assert attempts.read(tmp_path, "9 5678") == RunAttempt(0), "another agent with the same pid"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "{", '{"agent": 7}'])
def test_a_file_that_is_damaged_is_missing_and_can_be_replaced(tmp_path, content):
    (tmp_path / "distcheck_attempt.json").write_text(content)
    assert isinstance(attempts.read(tmp_path, "9 1234"), Missing)
    attempts.write(tmp_path, "9 1234", ATTEMPT)
    assert attempts.read(tmp_path, "9 1234") == ATTEMPT


def test_a_folder_that_is_gone_is_no_error_of_the_job(tmp_path):
    assert attempts.read(tmp_path / "gone", "9 1234") == RunAttempt(0)


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (("--nnodes=2",), {"TORCHELASTIC_MAX_RESTARTS": "3"}, "/tmp/torchelastic_x/7_y"),
        (("--nnodes=1:4",), {}, "/tmp/torchelastic_x/7_y"),
        (("--nnodes", "1:4", "train.py"), {}, "/tmp/torchelastic_x/7_y"),
        ((), {"PET_NNODES": "1:4"}, "/tmp/torchelastic_x/7_y"),
        (("--nnodes=2", "train.py", "--range=1:4"), {}, ""),
        (("--nnodes=1:4",), {"TORCHELASTIC_ERROR_FILE": ""}, ""),
        (("--nnodes=1:4",), {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/7_y/attempt_0/1/error.json"}, ""),
        (("--nnodes=1:4",), {"TORCHELASTIC_ERROR_FILE": "/var/log/own/error.json"}, ""),
    ],
)
def test_local_rank_0_of_an_agent_that_can_restart_remembers(monkeypatch, arguments, variables, expected):
    agent = Agent(program="torchrun", pid=9, arguments=arguments, exported=Variables({}))
    monkeypatch.setattr(process, "agent", lambda _environ: agent)
    environ = {
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/7_y/attempt_2/0/error.json",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        **variables,
    }
    assert attempts.folder(environ) == expected


def test_without_an_agent_nothing_is_remembered(monkeypatch):
    monkeypatch.setattr(process, "agent", lambda _environ: None)
    leaked = {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/7_y/attempt_2/0/error.json"}
    assert attempts.folder({**leaked, "TORCHELASTIC_MAX_RESTARTS": "3"}) == ""


def test_the_file_holds_the_agent_beside_the_attempt(tmp_path):
    attempts.write(tmp_path, "9 1234", ATTEMPT)
    kept = json.loads((tmp_path / "distcheck_attempt.json").read_text())
    assert (kept["agent"], kept["attempt"]["number"]) == ("9 1234", 3)
