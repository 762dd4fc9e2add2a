"""Bad input: one line that names the value and the fix, the exit code of the contract, never a traceback."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("args", "value"),
    [(["gate", "--nproc", "0"], "--nproc 0"), (["dance"], "dance"), (["env", "--no-such"], "--no-such")],
)
def test_invalid_input_is_reported_in_one_line(distcheck, args, value):
    """tests/cli/test_usage_errors.py has all of them."""
    ended = distcheck(*args)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1, ended.err
    assert value in ended.err


def test_distcheck_without_a_command_prints_help(distcheck):
    ended = distcheck()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: ")


def test_a_truncated_job_is_refused(distcheck, tmp_path):
    job = tmp_path / "job.json"
    assert distcheck("env", "--nproc", "1", "--save", str(job)).code == 0
    job.write_bytes(job.read_bytes()[:-200])
    ended = distcheck("report", str(job))
    assert ended.code == 2
    assert "is truncated" in ended.err


@pytest.mark.parametrize("option", ["--output", "--save"])
def test_a_full_disk_is_reported_and_the_report_is_not_lost(distcheck, option):
    ended = distcheck("env", "--nproc", "2", option, "/dev/full")
    assert ended.code == 70
    assert len(ended.err.splitlines()) == 1
    assert "No space left" in ended.err
    assert "PASS: " in ended.out
