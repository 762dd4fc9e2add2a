"""What `distcheck gate -- COMMAND` looks at in COMMAND before it starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.mark.skipif(not TORCHRUN.exists(), reason="torch without its programs")
def test_a_torchrun_whose_rendezvous_lacks_its_module_is_not_started(distcheck, port, tmp_path):
    alone = ("--rank", "0", "--world-size", "1", "--master-addr", "127.0.0.1", "--master-port", str(port))
    (tmp_path / "train.py").touch()
    command = (str(TORCHRUN), "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1", "train.py")
    ended = distcheck("gate", *alone, "--format", "json", "--output", str(tmp_path / "report.json"), "--", *command)
    report = json.loads((tmp_path / "report.json").read_text())
    assert ended.code == 30
    assert [(f["rule"], f["ranks"]) for f in report["findings"]] == [("sw-etcd-missing", [0])]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("python3", "trian.py"), "script trian.py does not exist"),
        (("python3", "-m", "job.trian"), "module job.trian is not found"),
    ],
)
def test_a_command_that_names_what_is_not_there_is_not_started(distcheck, tmp_path, words, what):
    (tmp_path / "train.py").touch()
    (tmp_path / "job").mkdir()
    ended = distcheck("gate", "--nproc", "2", "--", *words)
    assert (ended.code, ended.out) == (30, "")
    assert f"COMMAND's {what}" in ended.err


def test_a_command_that_is_one_process_of_the_ranks_that_were_tested_is_a_warning(distcheck, tmp_path):
    (tmp_path / "train.py").touch()
    chosen = ("--select", "command-processes-differ,command-file-missing")
    ended = distcheck("gate", "--nproc", "2", *chosen, "--sizes", "4K", "--iters", "1", "--", "python3", "train.py")
    assert ended.code == 0
    assert "COMMAND (python3 train.py) is one process, started once; distcheck tested 2 ranks" in ended.err


def test_a_command_of_a_run_from_outside_is_looked_for_where_it_starts(distcheck, tmp_path):
    (tmp_path / "train.py").touch()
    ended = distcheck("gate", "--hosts", "localhost", "--nproc", "1", "--", "python3", "trian.py")
    assert (ended.code, ended.out) == (2, "")
    assert "COMMAND's script trian.py: no such file, its folder has train.py; " in ended.err


@pytest.mark.parametrize(
    ("text", "what"),
    [("echo started", "train cannot be started: its first line"), ("#!/no/sh\n", "interpreter /no/sh does not exist")],
)
def test_a_script_without_its_interpreter_is_not_started(distcheck, tmp_path, text, what):
    script = tmp_path / "train"
    script.write_text(text)
    script.chmod(0o755)
    ended = distcheck("gate", "--nproc", "1", "--", "./train")
    assert (ended.code, ended.out) == (30, "")
    assert what in ended.err


def test_a_program_that_the_kernel_cannot_start_is_named_with_the_remedy(distcheck, tmp_path):
    script = tmp_path / "train"
    script.write_bytes(b"\x7fELF of another machine")
    script.chmod(0o755)
    ended = distcheck("gate", "--nproc", "1", "--sizes", "4K", "--iters", "1", "--", str(script))
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"distcheck: error: COMMAND {script} could not be started: ")
    assert "#!/bin/bash" in last
