"""What `distcheck gate -- COMMAND` looks at in COMMAND before it starts it."""

from __future__ import annotations

import json
import signal
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
    ("command", "missing"),
    [
        ("python3 trian.py", "script trian.py"),
        ("composer -n 2 trian.py", "script trian.py"),
        ("axolotl train trian.yaml", "file trian.yaml"),
    ],
)
def test_a_command_that_names_what_is_not_there_is_not_started(distcheck, tmp_path, command, missing):
    for name in ("composer", "axolotl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    ended = distcheck("gate", "--nproc", "2", "--", *command.split(), env=path)
    assert (ended.code, ended.out) == (30, "")
    assert f"COMMAND's {missing} does not exist" in ended.err


def test_a_command_of_a_run_from_outside_is_looked_for_where_it_starts(distcheck, tmp_path):
    (tmp_path / "train.py").touch()
    ended = distcheck("gate", "--hosts", "localhost", "--nproc", "1", "--", "python3", "trian.py")
    assert (ended.code, ended.out) == (2, "")
    assert "COMMAND's script trian.py: no such file, its folder has train.py; " in ended.err


def test_a_program_that_the_kernel_cannot_start_is_named_with_the_remedy(distcheck, tmp_path):
    script = tmp_path / "train"
    script.write_bytes(b"\x7fELF of another machine")
    script.chmod(0o755)
    ended = distcheck("gate", "--nproc", "1", "--sizes", "4K", "--iters", "1", "--", str(script))
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"distcheck: error: COMMAND {script} could not be started: ")
    assert "#!/bin/bash" in last


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_nodes_wait_for_their_numbers_ends_in_a_report(start, tmp_path, signum, code):
    words = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "198.51.100.1:29400", "x.py")
    run = start("gate", "--format", "json", "--output", "r.json", "--", str(TORCHRUN), *words)
    assert "waiting for a number from 198.51.100.1" in run.process.stderr.readline()
    run.interrupt(signum)
    ended = run.wait()
    report = json.loads((tmp_path / "r.json").read_text())
    assert (ended.code, report["exit_code"], ended.seconds < 20) == (code, code, True), ended
    waited = f"{signum.name} while waiting for node numbers at 198.51.100.1:29400"
    assert report["headline"].startswith(f"INTERRUPTED: {waited} in the start after ")
    assert {gap["reason"] for gap in report["not_checked"]} == {f"the run was ended by {waited}"}


_QUICK = ("--nproc", "1", "--sizes", "4K", "--iters", "1")
_SAY = (sys.executable, "-c", "import sys; print(sys.argv[1:])", "--x", "--local_rank=1")


@pytest.mark.parametrize(
    "words",
    [
        ("--local_rank=0", "gate", *_QUICK),
        ("--local-rank=0", "gate", *_QUICK),
        ("gate", "--local_rank=0", *_QUICK),
        ("gate", *_QUICK, "--local_rank", "0"),
    ],
)
def test_the_launchers_local_rank_is_distchecks_before_the_dashes_and_commands_behind_them(distcheck, words):
    ended = distcheck(*words, "--", *_SAY)
    assert (ended.code, ended.out) == (0, "['--x', '--local_rank=1']\n"), ended


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gate", "torchrun", "--nproc-per-node", "2", "x.py"), "Put -- before COMMAND. See: distcheck gate --help"),
        (("--", "torchrun", "x.py"), "In front of a command: distcheck gate -- COMMAND. See: distcheck --help"),
        (("--verion",), "(Possible options: --version). See: distcheck --help"),
    ],
)
def test_a_command_at_the_wrong_place_gets_the_line_that_works(distcheck, words, said):
    ended = distcheck(*words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("python3", "driver.py"), "python3 driver.py: its script may start ranks itself"),
        (("./ray", "start", "--head"), "ray: Ray places its ranks"),
        (("bash", "run.sh"), "bash run.sh: no known launcher found in it"),
    ],
)
def test_a_command_that_does_not_tell_its_ranks_is_named_and_two_are_tested(distcheck, tmp_path, command, why):
    (tmp_path / "driver.py").write_text("def main():\n    import torch.multiprocessing as mp\n    mp.spawn(run)\n")
    (tmp_path / "run.sh").write_text("true\n")
    (tmp_path / "ray").write_text("#!/bin/sh\n")
    (tmp_path / "ray").chmod(0o755)
    ended = distcheck("gate", "--sizes", "4K", "--iters", "1", "--", *command)
    assert ended.code == 0, ended
    lines = ended.err.splitlines()
    at = lines.index(f"placement not read from {why}")
    assert lines[at + 1] == "No rank count given; using 2 local Gloo ranks. Use --nproc N to set it."
