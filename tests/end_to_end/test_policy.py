"""A site's policy around real runs: a gate that only observes starts COMMAND, and plugins get their exit codes."""

from __future__ import annotations

import json
import socket

import pytest


@pytest.fixture
def taken(port):
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", port))
        sock.listen()
        yield port


GATE = ("gate", "--nproc", "2", "--sizes", "4K", "--iters", "1", "--format", "json", "--output", "report.json")


def test_a_gate_that_observes_starts_its_command_whatever_it_finds(distcheck, taken, tmp_path):
    (tmp_path / "p.toml").write_text('[command.gate]\nmode = "observe"\n')
    words = (*GATE, "--master-port", str(taken), "--policy", "p.toml", "--", "echo", "started")
    ended = distcheck(*words)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (ended.code, ended.out) == (0, "started\n")
    assert report["would"]["exit_code"] == 30
    assert next((f["rule"], f["observed"]) for f in report["findings"]) == ("net-port-in-use", True)
    (tmp_path / "p.toml").write_text('[command.gate]\nmode = "observe"\n[rule.net-port-in-use]\nmode = "enforce"\n')
    ended = distcheck(*words)
    assert (ended.code, ended.out) == (30, "")


def test_all_ranks_end_with_the_code_that_rank_0_judged_by_its_policy(by_hand, tmp_path):
    (tmp_path / "p.toml").write_text('mode = "observe"\n')
    fault = ("--path", "/nonexistent")
    first = by_hand("env", [0], 2, *fault, env={"DISTCHECK_POLICY": "p.toml"})
    second = by_hand("env", [1], 2, *fault)
    assert [run.wait().code for run in (*first, *second)] == [0, 0]
    assert {run.wait().code for run in by_hand("env", [0, 1], 2, *fault)} == {30}


@pytest.mark.parametrize(
    ("words", "began", "code"),
    [
        (("node",), "DISTCHECK OK - PASS: node ", 0),
        (("node", "--gpus", "1000"), "DISTCHECK CRITICAL - FAIL: ", 2),
        (("node", "--gpus", "1000", "--mode", "observe"), "DISTCHECK OK - WARN: ", 0),
        (("env",), "DISTCHECK CRITICAL - FAIL: ", 2),
        (("node", "--gpus", "few"), "DISTCHECK UNKNOWN - no report: exit code 2; ", 3),
        (("report", "nothing.json"), "DISTCHECK UNKNOWN - no report: exit code 2; ", 3),
    ],
)
def test_a_plugin_ends_with_the_exit_code_of_its_line(distcheck, words, began, code):
    ended = distcheck(*words, "--format", "nagios")
    assert (ended.code, ended.out.startswith(began), ended.out.count("\n")) == (code, True, 1), ended.out
