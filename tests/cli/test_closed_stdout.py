"""A stdout that is closed or full: `explain`, `report --schema`, `--version` and `--help` say so, and exit with 70."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "words", [["explain", "--log", "job.log"], ["report", "--schema"], ["--version"], ["--help"], ["gate", "-h"]]
)
def test_nothing_shown_is_exit_code_70_with_a_remedy(tmp_path, words):
    (tmp_path / "job.log").write_text("RuntimeError: No CUDA GPUs are available\n")
    command = f"exec {sys.executable} -m distcheck {' '.join(words)}"
    for redirection, reason in ((">&-", "it is closed"), ("> /dev/full", "No space left on device")):
        done = subprocess.run(
            ["sh", "-c", f"{command} {redirection}"], stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (70, 1)
        assert reason in done.stderr
        assert "redirect it to a file on a disk with free space" in done.stderr
        assert "--output" not in done.stderr
        assert "distcheck failed" not in done.stderr


@pytest.mark.parametrize("words", ["", "no-such-command"])
def test_a_usage_error_that_cannot_be_shown_keeps_its_exit_code(words):
    for redirection in ("2>&-", "2> /dev/full"):
        command = f"exec {sys.executable} -m distcheck {words} {redirection}"
        assert subprocess.run(["sh", "-c", command], check=False).returncode == 2


def test_a_reader_that_ends_early_gives_no_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "distcheck", "explain"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 70
    assert "Broken pipe" in done.stderr
    assert "Traceback" not in done.stderr
