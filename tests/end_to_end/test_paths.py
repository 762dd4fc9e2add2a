"""--path as a user gives it: every bad one is named, nothing blocks, and nothing is left in a good one."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def run(*words, **variables):
    environ = {"PATH": os.environ["PATH"], **variables}
    command = [sys.executable, "-m", "distcheck", *words, "--format", "json"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_bad_paths_are_named_each_and_a_good_one_is_left_as_it_was(tmp_path):
    good, fifo, file = tmp_path / "good", tmp_path / "fifo", tmp_path / "file"
    good.mkdir()
    os.mkfifo(fifo)
    file.write_text("")
    done = run("env", "--nproc", "2", "--path", str(good), DISTCHECK_PATH="")
    assert (done.returncode, json.loads(done.stdout)["findings"]) == (0, [])
    done = run("node", DISTCHECK_PATH=f"{good}:{fifo}:{file}:{tmp_path}/absent", HOME=str(good))
    found = json.loads(done.stdout)["findings"]
    assert {(f["rule"], f["message"].split(": ")[1]) for f in found if f["severity"] == "error"} == {
        ("storage-path-missing", f"{fifo} is not a folder"),
        ("storage-path-missing", f"{file} is not a folder"),
        ("storage-path-missing", f"{tmp_path}/absent does not exist"),
    }
    assert done.returncode == 40
    assert [*good.iterdir()] == []


def test_a_relative_path_is_a_usage_error():
    done = run("env", "--path", "data")
    assert (done.returncode, "--path data: give an absolute path" in done.stderr) == (2, True)
