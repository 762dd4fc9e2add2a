"""A saved run as the baseline of a later one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = (
    "bandwidth",
    "--nproc",
    "2",
    "--op",
    "all_reduce",
    "--sizes",
    "64K:256K",
    "--time-limit",
    "2",
    "--format",
    "json",
)


@pytest.fixture(scope="module")
def first(tmp_path_factory, on_cpus):
    """Measure once for all tests, and return the saved job."""
    path = tmp_path_factory.mktemp("baseline") / "before.json"
    command = [sys.executable, "-m", "distcheck", *RUN, "--save", path]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **on_cpus})
    return path


@pytest.fixture
def saved(first, tmp_path):
    return Path(shutil.copy(first, tmp_path))


def quicker(path, factor):
    """Rewrite a saved job as if it had been quicker and certain."""
    job = json.loads(path.read_text())
    for row in job["collectives"]["measurements"]:
        row["seconds_by_rank"] = [seconds / factor for seconds in row["seconds_by_rank"]]
        row["uncertainty"] = 0.01
    path.write_text(json.dumps(job))


def test_a_run_that_is_much_slower_than_before_is_not_passed(distcheck, saved):
    quicker(saved, 1000)
    ended = distcheck(*RUN, "--baseline", "before.json")
    assert ended.code == 20
    finding = ended.error
    assert finding["rule"] == "perf-below-baseline"
    assert "in before.json it took" in finding["message"]


def test_a_saved_run_is_held_to_another_one_later(distcheck, saved, tmp_path):
    now = tmp_path / "now.json"
    now.write_bytes(saved.read_bytes())
    assert distcheck("report", "now.json", "--baseline", "before.json").code == 0
    quicker(saved, 1000)
    assert distcheck("report", "now.json", "--baseline", "before.json").code == 20
