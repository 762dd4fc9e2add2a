"""A limit that leaves distcheck no file to open: one line names it and the command that raises it, exit code 30."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("env", "--nproc", "1"), 5),  # asyncio's loop takes more
        (("env", "--nproc", "1"), 7),
        (("net", "--nproc", "1"), 6),
        (("env", "--nproc", "2"), 8),  # rank 0 could open its port and accept nobody
        (("gate", "--nproc", "2"), 9),
        (("gate", "--nproc", "2"), 12),
        (("gate", "--nproc", "2"), 15),
    ],
)
def test_too_few_open_files_are_a_configuration_error_that_names_the_limit(words, files):
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "distcheck", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (30, "")
    assert done.stderr.startswith(
        f"distcheck: error: distcheck cannot run: the limit of open files (ulimit -n) is {files}; raise it with: "
        "ulimit -n 65536"
    )
