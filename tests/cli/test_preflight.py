"""distcheck.preflight() in this process: what it asks of the command line, and what it makes of any ending."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from typing import get_args

import msgspec
import pytest
from made.reported import CASES

import distcheck
from distcheck.cli import preflight as interface
from distcheck.cli.main import MODULES
from distcheck.report.document import document


def result(code, report=None, log=""):
    return distcheck.PreflightResult("gate", code, report, log)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [(0, "pass"), (10, "warn"), (20, "unknown"), (30, "job"), (40, "node"), (70, "unknown"), (1, "unknown"),
     (143, "unknown"), (-9, "unknown")],
)  # fmt: skip
def test_only_exit_code_0_passes(code, verdict):
    ended = result(code)
    assert (ended.verdict, ended.passed, bool(ended)) == (verdict, code == 0, code == 0)


def test_a_result_shows_findings_and_fixes_and_what_is_unknown():
    case = CASES["messy"]()
    text = str(result(30, document(case.job, case.diagnosis)))
    assert text.startswith("FAIL: ranks 10 and 11 both run on GPU-node2-2 (0000:12:00.0). [gpu-duplicate, +2 more] ")
    assert "error: gpu-duplicate: ranks 10 and 11 both run on GPU-node2-2" in text
    assert "\n    srun --gpus-per-task=0 --gres=gpu:8 python train.py" in text
    assert "NCCL_DEBUG" not in text  # an info finding
    unknown = msgspec.structs.replace(document(case.job, case.diagnosis), verdict="unknown", findings=())
    assert "not checked: node6 did not join" in str(result(20, unknown))


def test_what_arm_reaches_is_the_last_line_of_the_result(monkeypatch):
    assert str(result(0)._replace(armed="arm: nothing")) == "PASS: distcheck gate, exit code 0\narm: nothing"
    monkeypatch.setattr(interface, "_run", lambda *_, **__: (0, b"", ""))
    assert distcheck.preflight("env").armed == ""
    assert distcheck.preflight("env", arm=True).armed.startswith("arm: ")


def test_a_follower_names_who_has_the_report_and_a_broken_check_its_error():
    assert str(result(30)) == "FAIL: distcheck gate, exit code 30\nrank 0 has the report"
    assert str(result(0)) == "PASS: distcheck gate, exit code 0"
    said = "FAIL: GPU 0 is lost. [gpu-lost] exit code 40: exclude a and start again; report: rank 0, node a, process 7"
    assert str(result(40, log=f"distcheck: peers\ndistcheck: {said}\n")) == said
    log = "distcheck: error: cannot write\nlater\n"
    assert str(result(70, log=log)) == "UNKNOWN: distcheck gate, exit code 70\ncannot write"


def test_an_error_keeps_its_result_between_processes():
    case = CASES["cpu"]()
    error = distcheck.PreflightError(result(20, document(case.job, case.diagnosis)))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.result) == (str(error), error.result)


def test_commands_are_those_of_the_command_line_that_have_ranks():
    assert set(get_args(interface.Command)) == set(MODULES) - {"node", "hang", "policy", "report", "explain"}


@pytest.mark.parametrize(
    ("environ", "alone"),
    [({}, True), ({"DISTCHECK_TIMEOUT": "9"}, True), ({"SLURM_JOB_ID": "7"}, True), ({"RANK": "0"}, False),
     ({"DISTCHECK_NPROC": "2"}, False), ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, False),
     ({"OMPI_COMM_WORLD_RANK": "0"}, False)],
)  # fmt: skip
def test_a_process_without_a_launcher_is_the_only_rank(environ, alone):
    words = interface._words("gate", ("--mesh=tp=2",), environ, lone=True)
    assert words == ["gate", *(["--nproc=1", "--launcher=local"] if alone else []), "--mesh=tp=2"]
    assert interface._words("gate", (), environ, lone=False) == ["gate"]


@pytest.mark.parametrize("word", ["--", "--format", "--format=text", "--output=x.json", "--timeout"])
def test_options_that_would_take_the_report_away_are_refused(word):
    with pytest.raises(ValueError, match=word):
        distcheck.preflight("env", word)


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 70), ("exit 1", 1), ("kill -9 $$", -9), ("echo exit code 0; exit 0", 0), ("echo exit code 30", 30)],
)
def test_an_exit_code_0_that_the_child_did_not_write_is_no_pass(other_python, script, code):
    other_python(script)
    ended = distcheck.preflight("env")
    assert (ended.exit_code, ended.passed, ended.report) == (code, code == 0, None)


@pytest.mark.process
def test_a_python_without_memfd_create_has_the_result_too(other_python, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    other_python("echo exit code 30")
    assert distcheck.preflight("env").exit_code == 30


@pytest.mark.process
def test_a_child_that_does_not_end_is_killed_and_is_no_pass(other_python, monkeypatch, capsys):
    other_python("trap '' TERM; echo waiting >&2; echo exit code 0; exec sleep 100")
    monkeypatch.setattr(interface, "_BEYOND_SECONDS", 0.5)
    monkeypatch.setattr(interface, "_END_SECONDS", 0.2)
    start = time.monotonic()
    ended = distcheck.preflight("env", timeout=0.5)
    assert (ended.verdict, ended.exit_code) == ("unknown", 20)
    assert "did not end within 1 s" in str(ended)
    assert time.monotonic() - start < 10
    assert capsys.readouterr().err == "waiting\n"


@pytest.mark.process
def test_a_process_that_the_child_leaves_behind_delays_nothing(other_python, tmp_path):
    other_python(f"sleep 30 & echo $! > {tmp_path}/pid; echo exit code 0")
    start = time.monotonic()
    assert distcheck.preflight("env", quiet=True).passed
    assert time.monotonic() - start < 10
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.process
def test_a_python_that_cannot_be_started_is_no_pass(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ended = distcheck.preflight("env")
    assert (ended.exit_code, ended.verdict) == (70, "unknown")
    assert "could not start /nowhere/python" in str(ended)


@pytest.mark.process
def test_the_child_has_the_callers_variables_but_writes_neither_a_report_nor_a_pods_log(other_python, monkeypatch):
    other_python('echo "$MINE,$DISTCHECK_OUTPUT,$DISTCHECK_TERMINATION_LOG" >&2; echo exit code 0')
    monkeypatch.setenv("MINE", "7")
    monkeypatch.setenv("DISTCHECK_OUTPUT", "/tmp/elsewhere")
    assert distcheck.preflight("env", quiet=True).log == "7,,/dev/null\n"
    monkeypatch.setenv("DISTCHECK_TERMINATION_LOG", "/dev/termination-log")
    assert distcheck.preflight("env", quiet=True).log == "7,,/dev/termination-log\n"
