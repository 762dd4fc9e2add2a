"""--path, and the words of COMMAND that may be paths."""

from __future__ import annotations

import os

import pytest
from typer.main import get_command

from distcheck.cli.main import app
from distcheck.cli.options import NodeOptions, Options
from distcheck.cli.request import paths_of, request_of
from distcheck.cli.script import paths_in
from distcheck.facts.errors import UsageError


def test_each_path_counts_once_and_adds_the_look():
    options = Options(path=["/data:/a:b", "/home", "/data/"])
    asked = request_of("env", ("environment", "meeting"), options, {}).asked
    assert (asked.paths, asked.looks) == (("/data", "/a:b", "/home"), ("environment", "meeting", "storage"))
    assert request_of("env", ("environment",), Options(), {}).asked.looks == ("environment",)


@pytest.mark.parametrize("words", ["node --history", "gate --history", "report --history", "env --path"])
def test_a_folder_that_may_hang_is_not_looked_at_while_the_command_line_is_read(words, monkeypatch, tmp_path):
    (name, option), dead, seen = words.split(), str(tmp_path / "dead"), []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, *a, **more: (seen.append(str(path)), stat(path, *a, **more))[1])
    command = get_command(app([name])).commands[name]
    assert dead in str(command.make_context(name, [option, dead]).params.values())
    assert dead not in seen


@pytest.mark.parametrize("path", ["data", "./data", "", "~/data"])
def test_a_relative_path_is_a_usage_error_that_names_it(path):
    with pytest.raises(UsageError, match=f"--path {path}: give an absolute path"):
        paths_of(NodeOptions(path=[path]))


def test_a_path_that_no_report_can_show_is_a_usage_error():
    with pytest.raises(UsageError, match="not valid UTF-8"):
        paths_of(Options(path=["/data\udcff"]))


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("python train.py --config=conf/a.yaml --data /data 0.1 8 adamw", ("train.py", "conf/a.yaml", "/data", "0.1")),
        ("torchrun --nnodes 2 train.py s3://bucket/x file:///init", ("train.py",)),
        ("python t.py --output_dir /out --log-file=/x.log --save ck.pt --in a.bin /b", ("t.py", "a.bin", "/b")),
        ("python t.py --api-key /k/secret.txt t.py", ("t.py",)),
        ("sh", ()),
    ],
)
def test_words_that_may_be_paths_are_those_that_the_job_reads(command, paths):
    assert paths_in(command.split()) == paths
