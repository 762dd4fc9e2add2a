"""`--history` in real runs: a node that fails again and again is named, and a folder that is no history blocks none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

H100 = (Path(__file__).parents[1] / "nvml" / "dgx_h100.txt").read_text()


@pytest.fixture
def distcheck(tmp_path, fake_nvml):
    """Run distcheck on a node of this name, with NVML's answer `text`."""

    def distcheck(*args, name="node3", text=H100):
        told = fake_nvml.environ(text)
        environ = {key: told[key] for key in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")} | {"SLURMD_NODENAME": name}
        command = [sys.executable, "-m", "distcheck", *args]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60
        )

    return distcheck


def findings(done):
    found = json.loads(done.stdout)["findings"]
    return [(f["rule"], f["severity"], f["nodes"]) for f in found if f["severity"] != "info"]


def test_a_node_that_failed_three_times_is_named_when_it_is_healthy_again(distcheck, tmp_path):
    folder = tmp_path / "history"
    folder.mkdir()
    command = ("node", "--history", "history", "--format", "json")
    for text in (H100, *[H100 + "5.lost yes\n"] * 3):
        done = distcheck(*command, text=text)
        assert (done.returncode, done.stderr) == (0 if text == H100 else 40, "")
        assert "host-failed-before" not in done.stdout
    with (folder / "node3.jsonl").open("a") as file:
        file.write('{"fact":"pastrun","schema":1,"node":"node3","ti')
    again = distcheck(*command, "--save", "job.json")
    assert (again.returncode, again.stderr) == (0, "")
    assert findings(again) == [("host-failed-before", "warning", ["node3"])]
    assert "3 of its last 4 node runs" in again.stdout
    assert findings(distcheck(*command, name="node4")) == []
    saved = distcheck("report", "job.json", "--format", "json")
    assert findings(saved) == findings(again)

    shown = distcheck("report", "--history", "history")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "6 runs of 2 nodes\n1 line could not be read\n" in shown.stdout
    assert re.search(r"\nnode3 +3 +5 +60% +20\S+ \S+ +gpu-fell-off-bus +20", shown.stdout)
    assert "1 node never failed" in shown.stdout
    assert distcheck("report", "--history", "history", "--format", "html", "--output", "r.html").returncode == 0
    assert "gpu-fell-off-bus" in (tmp_path / "r.html").read_text()


def test_a_folder_that_cannot_be_used_costs_one_warning_and_one_line(distcheck, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for name, why in (("pipe", "is not a folder"), ("file", "is not a folder"), ("absent", "No such file")):
        began = time.monotonic()
        done = distcheck("node", "--history", name)
        assert time.monotonic() - began < 10
        assert done.returncode == 0
        assert re.search(rf"not checked\n  --history: {name}:? {why}", done.stdout)
        (line,) = done.stderr.splitlines()
        assert line.startswith("distcheck: warning: --history: this run is not recorded for every node: ")
        assert why in line


def test_a_report_of_what_is_no_history_is_a_usage_error(distcheck, tmp_path):
    (tmp_path / "file").touch()
    for args, words in (
        (("--history", "file"), "--history file is not a folder"),
        (("--history", "absent"), "mkdir -p absent"),
        (("--history", ".", "job.json"), "drop job.json"),
        (("--history", ".", "--format", "junit"), "only text, json, html, markdown"),
    ):
        done = distcheck("report", *args)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert words in line


def test_a_gate_compares_its_figures_with_those_of_earlier_gates(distcheck, tmp_path):
    """The figures of one gate, made ten times as high, are its history."""
    (tmp_path / "history").mkdir()
    command = ("gate", "--nproc", "2", "--backend", "gloo", "--sizes", "1M:1M", "--history", "history")
    command += ("--ignore", "host-shm-too-small", "--format", "json")
    assert distcheck(*command, text="").returncode == 0
    file = tmp_path / "history" / "node3.jsonl"
    once = json.loads(file.read_text())
    assert {name.split()[0] for name in once["figures"]} == {"all_reduce", "broadcast"}
    ((name, value),) = [item for item in once["figures"].items() if item[0].startswith("broadcast")]
    before = [once | {"run": str(n), "figures": {name: value * (10 if n < 5 else 1)}} for n in range(7)]
    file.write_text("".join(json.dumps(run) + "\n" for run in before))
    done = distcheck(*command, text="")
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["rule"] == "perf-below-history"]
    assert (found["severity"], found["nodes"]) == ("warning", ["node3"])
    assert found["message"].startswith("broadcast of 1 MiB has a bus bandwidth of ")
    assert len(file.read_text().splitlines()) == 8
