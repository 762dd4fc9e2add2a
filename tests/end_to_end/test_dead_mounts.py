"""Every command with a path on a real mount that never answers: it ends in time and names the path and its mount."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real.ended import BEYOND_SECONDS, Ended

HUNG = Path(__file__).parents[1] / "fakes" / "hung_mount.py"
COMMANDS = {
    "env": ("--nproc", "2"),
    "net": ("--nproc", "2"),
    "gpu": ("--nproc", "2"),
    "bandwidth": ("--nproc", "2", "--timeout", "30"),
    "isolate": ("--nproc", "2", "--timeout", "30"),
    "gate": ("--nproc", "2", "--timeout", "30"),
    "node": (),
}
"""With the options that the test gives them."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    """Mount it in a mount namespace; return the folder and how to run a program there."""
    folder = tmp_path_factory.mktemp("dead")
    server = [sys.executable, str(HUNG), str(folder)]
    with subprocess.Popen(["unshare", "--mount", *server], stdout=subprocess.PIPE, text=True) as mounting:
        assert mounting.stdout is not None
        assert mounting.stdout.readline() == "mounted\n"
        yield folder, ["nsenter", f"--mount=/proc/{mounting.pid}/ns/mnt", "sh", "-c", 'cd "$0" && exec "$@"']
        mounting.kill()  # who waits for the mount gets an error and ends


@pytest.fixture
def run(dead, tmp_path):
    """Run distcheck beside the mount, in a folder; what it leaves behind ends with the mount."""

    def run(*args, env=None, here=tmp_path):
        program = [*dead[1], str(here), sys.executable, "-P", "-m", "distcheck", *args]
        environ = {"PATH": os.environ["PATH"], **(env or {})}
        began = time.monotonic()
        done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=90, check=False)
        return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    return run


@pytest.mark.parametrize(
    ("command", "name"),
    [*((command, "HOME") for command in COMMANDS), ("env", "TMPDIR"), ("node", "TMPDIR"), ("env", "NCCL_CONF_FILE"),
     ("env", "working directory"), ("gate", "working directory")],
)  # fmt: skip
def test_a_dead_mount_is_named_with_what_leads_there(run, dead, command, name, tmp_path):
    folder, _ = dead
    variable = {} if name == "working directory" else {name: str(folder / "x")}
    here = tmp_path if variable else folder
    ended = run(command, *COMMANDS[command], "--format", "json", env=variable, here=here)
    assert (ended.code, ended.rules[0]) == (20, "storage-hangs"), ended
    finding = ended.report["findings"][0]
    assert f"(fuse nas:/hung at {folder}) did not answer within" in finding["message"]
    assert name in finding["evidence"]["named by"]
    assert ended.seconds < 10 + BEYOND_SECONDS


NO_ANSWER = "the file system at DEAD (fuse) did not answer within 3 s"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("env --nproc 2 --output DEAD/report", 70, f"DEAD/report could not be written: {NO_ANSWER}"),
        ("node --save DEAD", 70, f"DEAD could not be written: {NO_ANSWER}"),
        ("node --save DEAD/", 70, f"DEAD could not be written: {NO_ANSWER}"),
        ("env --hostfile DEAD/hosts", 2, f"--hostfile DEAD/hosts: cannot be read: {NO_ANSWER}"),
        ("report DEAD/job.json", 2, f"DEAD/job.json cannot be read: {NO_ANSWER}"),
        ("explain --log DEAD/log", 2, f"--log DEAD/log: {NO_ANSWER}"),
        ("gate --nproc 2 -- DEAD/train", 20, "DEAD/train (fuse nas:/hung at DEAD) did not answer within 3 s"),
    ],
)
def test_a_dead_path_of_the_command_line_is_reported_in_time(run, dead, line, code, told):
    ended = run(*line.replace("DEAD", str(dead[0])).split())
    shown = " ".join(f"{ended.out} {ended.err}".split()).replace(str(dead[0]), "DEAD")
    assert (ended.code, told in shown) == (code, True), ended
    assert ended.seconds < 10 + BEYOND_SECONDS
    if code == 70:
        assert ended.out.startswith("UNKNOWN: ")
        assert "storage-hangs" in ended.out


@pytest.mark.parametrize("command", ["env", "node"])
def test_a_policy_on_a_dead_mount_is_not_used_and_keeps_nobody_waiting(run, dead, command):
    folder, _ = dead
    ended = run(command, env={"DISTCHECK_POLICY": str(folder / "policy.toml")})
    assert ended.code == 0
    assert ended.seconds < 10 + BEYOND_SECONDS
    assert "tool-policy-not-used" in ended.out
    assert "did not answer within" in ended.out
