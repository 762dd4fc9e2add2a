"""Variables that look like misspelt ones of distcheck."""

from __future__ import annotations

import pytest

from distcheck.cli.variables import warn_of_misspelt


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DISTCHECK_TIMEOUTS", "DISTCHECK_TIMEOUT"),
        ("DISTCHECK_JOINTIMEOUT", "DISTCHECK_JOIN_TIMEOUT"),
        ("DISTCHECK_timeout", "DISTCHECK_TIMEOUT"),
        ("DISTCHECK_HOST", "DISTCHECK_HOSTS"),
        ("DISTCHECK_GPU", "DISTCHECK_GPUS"),
        ("DISTCHECK_TOKENS", "DISTCHECK_TOKEN"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_right_one(capsys, name, meant):
    warn_of_misspelt({name: "5"})
    assert capsys.readouterr().err == f"distcheck: warning: {name} has no effect; did you mean {meant}?\n"


def test_a_name_s_control_characters_are_escaped(capsys):
    warn_of_misspelt({"DISTCHECK_TIMEOUT\x1b": "5"})
    assert capsys.readouterr().err.startswith(r"distcheck: warning: DISTCHECK_TIMEOUT\x1b has no effect; ")


@pytest.mark.parametrize(
    "name",
    [
        "DISTCHECK_TIMEOUT", "DISTCHECK_GPUS", "DISTCHECK_EXPORT", "DISTCHECK_TOKEN", "DISTCHECK_TERMINATION_LOG",
        "DISTCHECK_TRACEBACK", "DISTCHECK_HOME", "DISTCHECK_IMAGE", "DISTCHECK_LOG", "DISTCHECK_VERSION", "DISTCHECK_",
        "TIMEOUTS", "_DISTCHECK_COMPLETE",
    ],
)  # fmt: skip
def test_a_right_variable_and_one_of_the_site_are_left_alone(capsys, name):
    warn_of_misspelt({name: "5"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "rank", "warns"),
    [
        (("env",), "0", 1),
        (("env",), "", 1),
        (("env", "--nproc", "2", "--launcher", "local"), "", 1),
        (("node",), "1", 1),
        (("env", "-q"), "0", 0),
        (("env", "--alone"), "1", 0),
    ],
)
@pytest.mark.process
def test_one_process_of_a_job_warns_unless_it_is_quiet(ended, monkeypatch, words, rank, warns):
    monkeypatch.setenv("DISTCHECK_TIMEOUTS", "5")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", str(int(rank or 0) + 1))
    _, _, err = ended(*words)
    assert err.count("DISTCHECK_TIMEOUTS has no effect; did you mean DISTCHECK_TIMEOUT?") == warns
