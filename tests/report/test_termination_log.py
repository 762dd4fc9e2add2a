"""The termination log of a Kubernetes pod."""

from __future__ import annotations

import os
import threading

import pytest

from distcheck.cli import publish
from distcheck.cli.options import Options
from distcheck.facts.asked import Asked
from distcheck.facts.job import Job
from distcheck.report import termination_log
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, NotChecked, Verdict

JOB = Job(distcheck="0.1.0", run="r", asked=Asked("gate", ("environment",)), met=True)
BAD = Finding(
    rule="gpu-fell-off-bus",
    scope="gpu",
    nodes=("node1",),
    message="node1: GPU 3 is lost",
    fix=Fix("Reboot it.", ("sudo reboot",)),
)
HINT = Finding(rule="env-hint", severity="info", message="by the way", fix=Fix("Nothing."))
GAP = NotChecked(rule="a", reason="ranks are missing")


def diagnosis(*findings, gaps=(), verdict=Verdict("node", 40)):  # noqa: B008 it is frozen
    return Diagnosis(findings, gaps, verdict)


def test_the_message_has_verdict_findings_fixes_and_gaps():
    optional = NotChecked(rule="b", reason="not asked for", required=False)
    assert termination_log.message(JOB, diagnosis(BAD, HINT, gaps=(GAP, GAP, optional))).decode() == (
        "FAIL: node1: GPU 3 is lost. [gpu-fell-off-bus] exit code 40: exclude node1 and start again\n"
        "error: gpu-fell-off-bus: node1: GPU 3 is lost\n"
        "  fix: Reboot it.\n"
        "    sudo reboot\n"
        "not checked: ranks are missing\n"
    )


@pytest.mark.parametrize("length", range(3990, 4080, 7))
def test_a_long_message_is_cut_at_a_whole_character(length):
    long = Finding(rule="x", message="m" * length + "ü€𝄞" * 100, fix=Fix("f" * 5000))
    message = termination_log.message(JOB, diagnosis(long))
    assert 4000 < len(message) <= 4096
    assert message.decode().endswith("\n…\n")


def test_control_characters_and_surrogates_are_escaped():
    evil = Finding(rule="x", message="a\x1b[31m\ud800b", fix=Fix("c\nd"))
    assert rb"error: x: a\x1b[31m\ud800b" in termination_log.message(JOB, diagnosis(evil))


def test_the_variable_names_the_file(tmp_path):
    log = tmp_path / "log"
    termination_log.write(JOB, diagnosis(BAD), {"DISTCHECK_TERMINATION_LOG": str(log)})
    assert log.read_bytes() == termination_log.message(JOB, diagnosis(BAD))


def test_outside_a_pod_there_is_no_termination_log(tmp_path, monkeypatch):
    usual = tmp_path / "termination-log"
    monkeypatch.setattr(termination_log, "_USUAL", usual)
    assert termination_log.log_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None, "the kubelet makes the file"
    usual.touch()
    assert termination_log.log_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == usual
    assert termination_log.log_of({}) is None


def test_an_unwritable_log_is_ignored():
    termination_log.write(JOB, diagnosis(BAD), {"DISTCHECK_TERMINATION_LOG": "/nowhere/log"})


def test_a_log_that_is_a_pipe_without_a_reader_is_not_waited_for(tmp_path):
    log = tmp_path / "log"
    os.mkfifo(log)
    late = threading.Timer(5, os.open, (log, os.O_RDWR))  # a wait without end ends here
    late.start()
    termination_log.write(JOB, diagnosis(BAD), {"DISTCHECK_TERMINATION_LOG": str(log)})
    assert late.is_alive()
    late.cancel()


@pytest.mark.parametrize(
    ("code", "with_command", "written"), [(0, False, True), (0, True, False), (40, True, True), (40, False, True)]
)
def test_a_pass_leaves_the_message_to_command(tmp_path, monkeypatch, capsys, code, with_command, written):
    log = tmp_path / "log"
    monkeypatch.setenv("DISTCHECK_TERMINATION_LOG", str(log))
    judged = diagnosis(verdict=Verdict("pass", 0)) if code == 0 else diagnosis(BAD)
    assert publish.publish(JOB, judged, code, Options(), to_stderr=with_command) == code
    assert log.exists() == written
    assert "exit code" in (capsys.readouterr().err if with_command else capsys.readouterr().out)
