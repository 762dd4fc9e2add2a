"""Invalid command lines: one line that names the value and the remedy, exit code 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from distcheck.cli.main import MODULES, app

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
    (["bandwidth", "--op", ","], "--op ',' names no operation", "broadcast"),
    (["bandwidth", "--dtype", " ,"], "--dtype ' ,' names no data type", "bfloat16"),
    (["env", "--hosts", "a", "--env", " ,"], "--env ' ,' names no variable", "NCCL_*,UCX_*"),
    (["env", "--hosts", "a", "--launcher-args", " "], "--launcher-args ' ' names no argument", "--partition=gpu"),
    (["env", "--hosts", "a", "--python", " "], "--python ' ' is blank", "drop it"),
    (["env", "--hosts", "a", "--setup", " "], "--setup ' ' is blank", "drop it"),
    (["bandwidth", "--min-busbw", "-5"], "--min-busbw -5", "a number from 0.001"),
    (["env", "--format", "h\udcff"], r"--format h\udcff", "choose one of text"),
    (["env", "--timeout", "h\udcff"], r"--timeout h\udcff", "a number from 0.001"),
    (["env", "--nproc", "1", "--master-addr", "h\udcff"], r"--master-addr 'h\udcff'", "a host's name or address"),
    (["env", "--save", "no such/jobs/"], "--save no such/jobs/", "mkdir -p 'no such/jobs/'"),
    (["env", "--output", "no-such/"], "--output no-such/", "create it with"),
    (["gate", "--nproc", "2", "--"], "--: COMMAND is empty", "unset variable"),
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
    (["gate", "--burn", "50"], "--burn 50", "--timeout 110"),
    (["bandwidth", "--burn", "0"], "--burn 0", "a number from 0.001"),
    (["env", "--join-timeout", "300"], "--join-timeout 300", "--timeout 360"),
    (["env", "--output", "/"], "--output /", "name a file in it"),
    (["env", "--backend", "ncl"], "--backend ncl", "choose one of auto, nccl"),
    (["env", "--backend", "cpu:gloo,cuda:ncl"], "--backend cpu:gloo,cuda:ncl", "or the backend of a plugin"),
    (["env", "--backend", "cuda:"], "--backend cuda:", "choose one of auto, nccl"),
    (["env", "--format", "yaml"], "--format yaml", "json"),
    (["env", "--select", "no-such-rule"], "no-such-rule", "distcheck explain"),
    (["env", "--ignore", "no-such-rule"], "no-such-rule", "distcheck explain"),
    (["env", "--select", "net-prot-in-use"], "net-prot-in-use", "did you mean net-port-in-use"),
    (["node", "--ignore", "gpu-fell-off-buss"], "gpu-fell-off-buss", "did you mean gpu-fell-off-bus"),
    (["env", "--output", "/nonexistent/report"], "/nonexistent", "mkdir -p"),
    (["env", "--output", "/etc/passwd/report"], "--output /etc/passwd/report", "/etc/passwd is a file"),
    (["env", "--save", "/etc/passwd/a/b"], "--save /etc/passwd/a/b", "/etc/passwd is a file"),
    (["env", "--save", "/nonexistent/job"], "/nonexistent", "mkdir -p"),
    (["gate", "--", "no-such-program"], "no-such-program", "PATH"),
    (["gate", "--", "./no-such-program"], "COMMAND ./no-such-program", "correct its path"),
    (["gate", "--", ""], "COMMAND ''", "PATH"),
    (["gate", "--", "/"], "COMMAND /", "is a directory"),
    (["gate", "--", "/etc/passwd"], "COMMAND /etc/passwd", "chmod +x /etc/passwd"),
    (["gate", "--nproc", "2", "--export", "--", "true"], "--export", "one process per rank"),
    (["gate", "--arm"], "--arm", "give -- COMMAND"),
    (["env", "--select", "gpu-duplicate", "--ignore", "gpu-duplicate"], "gpu-duplicate", "no rule is left"),
    (["gate", "--alone"], "--alone", "drop --alone"),
    (["report"], "report", "--save"),
    (["report", "/nonexistent/job.json"], "/nonexistent/job.json", "--save"),
    (["report", "/etc/passwd"], "/etc/passwd", "--save"),
    (["report", "job.json", "--baseline", "."], "--baseline . contains no .json file", "--save"),
    (["report", ""], "FILE|DIR ''", "drop FILE|DIR"),
    (["report", "job.json", ""], "FILE|DIR ''", "drop FILE|DIR"),
    (["explain", "env-rank-unsett"], "env-rank-unsett", "env-rank-unset"),
    (["explain", "--log", "/nonexistent/job.log"], "/nonexistent/job.log", "No such file"),
    (["explain", "env-rank-unset", "--log", "job.log"], "env-rank-unset", "not both"),
    (["env", "--no-such-option"], "--no-such-option", ". See: distcheck env --help"),
    (["env", "extra"], "(extra)", ". See: distcheck env --help"),
    (["dance"], "dance", "See: distcheck --help"),
    (["gat"], "'gat'. Did you mean 'gate'? See:", "distcheck --help"),
]


@pytest.mark.parametrize("command", MODULES)
def test_an_empty_value_is_refused_by_every_option(ended, command):
    params = get_command(app([command])).commands[command].params
    options = [max(p.opts, key=len) for p in params if p.param_type_name == "option" and not p.is_flag]
    for words, option in ((words, o) for o in options for words in ([o, ""], [f"{o}="])):
        code, out, err = ended(command, *words)
        assert (code, out) == (2, "")
        assert f"{option} '': the value is empty" in err
        assert f"drop {option}" in err


@pytest.mark.parametrize(
    "words",
    [("{}",), ("env", "--select", "{}"), ("env", "--output", "/{}/x"), ("report", "{}"), ("report", "job.json"),
     ("gate", "--", "{}"), ("explain", "{}"), ("explain", "--log", "{}")],
    ids=" ".join,
)  # fmt: skip
def test_an_error_has_no_control_characters_of_a_value_or_a_file(ended, tmp_path, words):
    (tmp_path / "job.json").write_text(
        '{"schema": 1, "distcheck": "0", "run": "r", "asked": {"fact": "\\u001b[31m\\n"}}'
    )
    code, out, err = ended(*(word.format("a\x1b[31m\nb") for word in words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "\x1b" not in err
    assert r"\x1b[31m\n" in err


def test_a_command_on_path_that_is_not_executable_is_named_with_its_place(ended, monkeypatch, tmp_path):
    (tmp_path / "train").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = ended("gate", "--", "train")
    assert code == 2
    assert f"COMMAND train: not executable; make it so with: chmod +x {tmp_path / 'train'}" in err


@pytest.mark.parametrize(
    ("command", "name", "value", "option"),
    [
        ("env", "DISTCHECK_IGNORE", "nosuch", "--ignore"),
        ("node", "DISTCHECK_SELECT", "nosuch", "--select"),
        ("env", "DISTCHECK_TIMEOUT", "soon", "--timeout"),
        ("env", "DISTCHECK_SAVE", "/nonexistent/job", "--save"),
        ("env", "DISTCHECK_PATH", "data", "--path"),
        ("gate", "DISTCHECK_NPROC", "0", "--nproc"),
        ("gate", "DISTCHECK_HOSTS", "a[", "--hosts"),
        ("bandwidth", "DISTCHECK_SIZES", "big", "--sizes"),
        ("bandwidth", "DISTCHECK_BASELINE", "/nonexistent/job", "--baseline"),
    ],
)
def test_a_value_from_a_variable_is_reported_with_the_variable(ended, monkeypatch, command, name, value, option):
    monkeypatch.setenv(name, value)
    code, out, err = ended(command)
    assert (code, out) == (2, "")
    assert name in err
    assert option in err
    assert value in err
    assert len(err.splitlines()) == 1
    monkeypatch.delenv(name)
    assert name not in ended(command, option, value)[2]


def test_a_folder_that_may_not_be_entered_is_named(ended, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    for words in (
        ("env", "--save", "a/b"),
        ("node", "--reason-file", "a/b"),
        ("report", "a/b"),
        ("explain", "--log", "a/b"),
    ):
        code, out, err = ended(*words)
        assert (code, out) == (2, "")
        assert "a/b" in err
        assert "Permission denied" in err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("env", "--save", "{}"), "choose a shorter name"),
        (("env", "--output", "{}/x"), "choose a shorter name"),
        (("node", "--reason-file", "{}"), "choose a shorter name"),
        (("env", "--exclude-file", "{}"), "choose a shorter name"),
        (("explain", "{}", "--log", "x"), "give a rule"),
    ],
)
def test_a_name_that_is_too_long_is_reported_with_a_remedy_that_helps(ended, words, remedy):
    code, out, err = ended(*(word.format("x" * 300) for word in words))
    assert (code, out) == (2, "")
    assert "x" * 300 in err
    assert remedy in err
    assert "permissions" not in err


def test_an_input_whose_name_is_too_long_is_no_matter_of_permissions(ended):
    for words in (["report", "x" * 300], ["report", ".", "--baseline", "x" * 300]):
        code, _, err = ended(*words)
        assert code == 2
        assert "File name too long" in err
        assert "permissions" not in err


@pytest.mark.process
def test_an_output_may_have_the_longest_name_that_a_file_can_have(ended, tmp_path):
    assert ended("env", "--nproc", "1", "--output", "x" * 255)[:2] == (0, "")
    assert "PASS" in (tmp_path / ("x" * 255)).read_text()


@pytest.mark.parametrize(
    ("words", "option", "other"),
    [
        (("env", "--save", "x", "--output", "./x"), "--save x", "--output"),
        (("node", "--save", "x", "--reason-file", "x"), "--reason-file x", "--save"),
        (("report", "x", "--output", "x"), "--output x", "an input"),
        (("report", ".", "--output", "x.json"), "--output x.json", "an input"),
        (("report", "x", "--baseline", "x.json", "--output", "x.json"), "--output x.json", "an input"),
    ],
)
def test_an_output_that_would_replace_an_input_or_another_output_is_refused(ended, tmp_path, words, option, other):
    for name in ("x", "x.json"):
        (tmp_path / name).write_text("before")
    code, out, err = ended(*words)
    assert (code, out) == (2, "")
    assert f"{option}: this file is {other} too; choose another" in err
    assert {path.read_text() for path in tmp_path.iterdir()} == {"before"}


@pytest.mark.process
def test_a_baseline_that_cannot_be_read_is_reported_with_its_option(ended, tmp_path):
    (tmp_path / "old").mkdir()
    for number in "12":
        assert ended("env", "--nproc", number, "--save", f"old/{number}.json")[0] == 0
    for baseline, problem in (("absent", " cannot be read: No such file"), ("old", ": the files are from different")):
        code, out, err = ended("report", "old/1.json", "--baseline", baseline)
        assert (code, out) == (2, "")
        assert f"--baseline {baseline}{problem}" in err


@pytest.mark.process
def test_a_device_takes_several_outputs(ended):
    assert ended("env", "--nproc", "1", "--save", "/dev/null", "--output", "/dev/null")[0] == 0


@pytest.mark.process
def test_an_empty_variable_is_as_good_as_none(ended, monkeypatch):
    for name in ("DISTCHECK_HOSTS", "DISTCHECK_SELECT", "DISTCHECK_RANK", "DISTCHECK_SAVE"):
        monkeypatch.setenv(name, "")
    assert ended("env", "--nproc", "1")[0] == 0


@pytest.mark.parametrize(("args", "value", "remedy"), USAGE, ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_invalid_input_is_reported_in_one_line(ended, args, value, remedy):
    code, out, err = ended(*args)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert value in err
    assert remedy in err
