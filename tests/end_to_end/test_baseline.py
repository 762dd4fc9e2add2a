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


@pytest.mark.slow
def test_other_ranks_are_reported_and_not_compared(distcheck, saved):
    quicker(saved, 1000)
    ended = distcheck(*RUN[:2], "3", *RUN[3:], "--baseline", "before.json")
    assert ended.code == 20, "unknown is never a pass"
    assert ended.report["findings"] == []
    (unlooked,) = [n for n in ended.report["not_checked"] if n["rule"] == "perf-below-baseline"]
    assert "ranks on each node: 1 x 2, now 1 x 3" in unlooked["reason"]


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("{}", "is not a distcheck job file")])
def test_an_invalid_baseline_is_refused_before_anything_is_measured(distcheck, tmp_path, text, words):
    if text is not None:
        (tmp_path / "other.json").write_text(text)
    ended = distcheck(*RUN, "--baseline", "other.json")
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
