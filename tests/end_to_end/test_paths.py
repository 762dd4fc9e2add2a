"""--path as a user gives it: every bad one is named, nothing blocks, and nothing is left in a good one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.probe.kernel_files import mapped


def run(*words, folder=None, begin=None, **variables):
    environ = {"PATH": os.environ["PATH"], **variables}
    command = [sys.executable, "-m", "distcheck", words[0], "--format", "json", *words[1:]]
    more = {"cwd": folder, "preexec_fn": begin, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command, env=environ, check=False, **more)


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


def test_names_that_are_not_utf_8_disturb_no_healthy_job(tmp_path):
    folder = tmp_path / "donn\udce9es"
    folder.mkdir()
    (folder / "train.py").write_text("")
    library = folder / "libm.so"
    library.write_bytes(Path(next(path for path in mapped() if "/libm" in path)).read_bytes())
    Path(folder / "python").symlink_to(Path(sys.prefix))
    variables = dict.fromkeys(("TMPDIR", "HOME", "SLURM_SCRIPT_CONTEXT"), str(folder))
    variables |= dict.fromkeys(("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "LD_PRELOAD"), str(library))
    command = (f"{folder}/python/bin/python", f"{folder}/train.py", "--init-method", f"file://{folder}/init")
    report = tmp_path / "report.json"
    for words in (("node",), ("gate", "--nproc", "2", "--sizes", "64K:64K", "--output", str(report), "--", *command)):
        done = run(*words, **variables)
        assert (done.returncode, json.loads(done.stdout or report.read_text())["verdict"]) == (0, "pass"), done


@pytest.mark.parametrize("words", [("net", "--nproc", "2"), ("node",)])
def test_a_working_directory_that_is_gone_ends_no_check(tmp_path, words):
    folder = tmp_path / "removed"
    folder.mkdir()
    done = run(*words, folder=folder, begin=folder.rmdir)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "pass"), done
