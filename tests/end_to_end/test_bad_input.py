"""Bad input: one line that names the value and the fix, the exit code of the contract, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

USAGE = [
    (["gate", "--nproc", "0"], "--nproc 0", "1 to 4096"),
    (["gate", "--nproc", "many"], "--nproc many", "auto"),
    (["gate", "--master-port", "70000"], "--master-port 70000", "from 1 to 65535"),
    (["gate", "--master-port", "0"], "--master-port 0", "from 1 to 65535"),
    (["env", "--rank", "1"], "--rank", "--world-size"),
    (["env", "--rank", "-1", "--world-size", "2"], "--rank -1", "a whole number from 0"),
    (["env", "--world-size", "0", "--rank", "0"], "--world-size 0", "a whole number from 1"),
    (["bandwidth", "--sizes", "4M:1M"], "'4M:1M'", "MIN:MAX"),
    (["bandwidth", "--sizes", "1M:4M:x1"], "x1", "at least 2"),
    (["bandwidth", "--sizes", "big"], "'big'", "MIN:MAX"),
    (["bandwidth", "--sizes", "0:1M"], "'0'", "4 bytes"),
    (["bandwidth", "--iters", "0"], "--iters 0", "a whole number from 1"),
    (["bandwidth", "--op", "all_reduce,teleport"], "teleport", "broadcast"),
    (["bandwidth", "--min-busbw", "-5"], "--min-busbw -5", "a number from 0.001"),
    (["env", "--timeout", "0"], "--timeout 0", "a number from 0.001"),
    (["env", "--timeout", "nan"], "--timeout nan", "a number from 0.001"),
    (["env", "--timeout", "soon"], "--timeout soon", "must be a number from 0.001"),
    (["env", "--master-port=abc"], "--master-port abc", "a whole number"),
    (["env", "--timeout", "inf"], "--timeout inf", "to 1000000000"),
    (["env", "--rank", "1" + "0" * 30, "--world-size", "2"], "--rank 1000", "to 1000000000"),
    (["node", "--timeout", "2"], "--timeout 2", "a number from 3"),
    (["node", "--gpus", "1024"], "--gpus 1024", "from 0 to 1023"),
    (["env", "--launcher", "magic"], "--launcher magic", "slurm"),
    (["report", "--format", "yaml", "job.json"], "--format yaml", "markdown"),
    (["gate", "--nproc"], "--nproc", "See: distcheck gate --help"),
    (["env", "--join-timeout", "300"], "--join-timeout 300", "--timeout 360"),
    (["env", "--output", "/"], "--output /", "name a file in it"),
    (["env", "--backend", "smoke"], "--backend smoke", "nccl"),
    (["env", "--format", "yaml"], "--format yaml", "json"),
    (["env", "--select", "no-such-rule"], "no-such-rule", "distcheck explain"),
    (["env", "--ignore", "no-such-rule"], "no-such-rule", "distcheck explain"),
    (["env", "--output", "/nonexistent/report"], "/nonexistent", "mkdir -p"),
    (["env", "--save", "/nonexistent/job"], "/nonexistent", "mkdir -p"),
    (["gate", "--", "no-such-program"], "no-such-program", "PATH"),
    (["gate", "--nproc", "2", "--export", "--", "true"], "--export", "one process per rank"),
    (["env", "--select", "gpu-duplicate", "--ignore", "gpu-duplicate"], "gpu-duplicate", "no rule is left"),
    (["gate", "--alone"], "--alone", "drop --alone"),
    (["report"], "report", "--save"),
    (["report", "/nonexistent/job.json"], "/nonexistent/job.json", "--save"),
    (["report", "/etc/passwd"], "/etc/passwd", "--save"),
    (["explain", "env-rank-unsett"], "env-rank-unsett", "env-rank-unset"),
    (["explain", "--log", "/nonexistent/job.log"], "/nonexistent/job.log", "No such file"),
    (["explain", "--log", "/etc"], "/etc", "Is a directory"),
    (["explain", "env-rank-unset", "--log", "job.log"], "env-rank-unset", "not both"),
    (["env", "--no-such-option"], "--no-such-option", "--help"),
    (["dance"], "dance", "See: distcheck --help"),
]


@pytest.mark.parametrize(("args", "value", "remedy"), USAGE, ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_invalid_input_is_reported_in_one_line(distcheck, args, value, remedy):
    ended = distcheck(*args)
    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1, ended.err
    assert value in ended.err
    assert remedy in ended.err


def test_a_variable_that_is_not_a_number_is_named(distcheck):
    ended = distcheck("env", env={"DISTCHECK_TIMEOUT": "5m"})
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("distcheck: error: DISTCHECK_TIMEOUT=5m (--timeout): must be a number from ")


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


def test_a_job_of_a_newer_schema_is_refused_with_its_number(distcheck, tmp_path):
    job = tmp_path / "job.json"
    assert distcheck("env", "--nproc", "1", "--save", str(job)).code == 0
    job.write_text(job.read_text().replace('"schema":1', '"schema":2'))
    ended = distcheck("report", str(job))
    assert ended.code == 2
    assert "schema 2" in ended.err


@pytest.mark.parametrize("option", ["--output", "--save"])
def test_a_full_disk_is_reported_and_the_report_is_not_lost(distcheck, option):
    ended = distcheck("env", "--nproc", "2", option, "/dev/full")
    assert ended.code == 70
    assert len(ended.err.splitlines()) == 1
    assert "No space left" in ended.err
    assert "PASS: " in ended.out


def test_a_full_stdout_is_reported(start):
    with Path("/dev/full").open("w") as full:
        run = start("env", "--nproc", "1", stdout=full)
        _, err = run.process.communicate(timeout=30)
    assert run.process.returncode == 70
    assert "No space left" in err
    assert "Traceback" not in err


def test_options_can_be_set_by_variables(distcheck):
    ended = distcheck("env", "--nproc", "1", env={"DISTCHECK_FORMAT": "json"})
    assert ended.report["command"] == "env"
