"""`--history` in real runs: a node that fails again and again is named, and a folder that is no history blocks none."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from made.nvml_jobs import PROFILES
from real.ended import STARTING_SECONDS
from real.spoiling import planted
from real.waiting import until

H100 = PROFILES["dgx_h100"]


@pytest.fixture
def on_node(tmp_path, fake_nvml):
    """Run distcheck on a node of this name, with NVML's answer `text`."""

    def on_node(*args, name="node3", text=H100):
        environ = fake_nvml.variables(text) | {"SLURMD_NODENAME": name}
        command = [sys.executable, "-m", "distcheck", *args]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60
        )

    return on_node


def findings(done):
    found = json.loads(done.stdout)["findings"]
    return [(f["rule"], f["severity"], f["nodes"]) for f in found if f["severity"] != "info"]


def test_a_node_that_failed_three_times_is_named_when_it_is_healthy_again(on_node, tmp_path):
    folder = tmp_path / "history"
    folder.mkdir()
    command = ("node", "--history", "history", "--format", "json")
    for text in (H100, *[H100 + "5.lost yes\n"] * 3):
        done = on_node(*command, text=text)
        assert (done.returncode, done.stderr) == (0 if text == H100 else 40, "")
        assert "host-failed-before" not in done.stdout
    with (folder / "node3.jsonl").open("a") as file:
        file.write('{"fact":"pastrun","schema":1,"node":"node3","ti')
    again = on_node(*command, "--save", "job.json")
    assert (again.returncode, again.stderr) == (0, "")
    assert findings(again) == [("host-failed-before", "warning", ["node3"])]
    assert "3 of its last 4 node runs" in again.stdout
    assert findings(on_node(*command, name="node4")) == []
    saved = on_node("report", "job.json", "--format", "json")
    assert findings(saved) == findings(again)

    shown = on_node("report", "--history", "history")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "6 runs of 2 nodes\n1 line could not be read\n" in shown.stdout
    assert re.search(r"\nnode3 +3 +5 +60% +20\S+ \S+ +gpu-fell-off-bus +20", shown.stdout)
    assert "1 node never failed" in shown.stdout


def test_the_leader_writes_one_line_for_each_node_of_a_job(by_hand, tmp_path):
    """Two ranks on nodes of their own, as far as distcheck is told; a node alone would write its own file only."""
    (tmp_path / "history").mkdir()
    bad = [{"node": "node2", "time": time.time(), "run": str(n), "command": "net", "verdict": "node", "schema": 1,
            "findings": [{"rule": "gpu-xid-recent", "severity": "error", "scope": "gpu", "confirmed": True}]}
           for n in range(3)]  # fmt: skip
    (tmp_path / "history" / "node2.jsonl").write_text("".join(json.dumps(run) + "\n" for run in bad))
    runs = [
        by_hand("net", [rank], 2, "--format", "json", "--ignore", "net-hostname-loopback,net-duplicate-ip",
                env={"SLURMD_NODENAME": f"node{rank + 1}", "DISTCHECK_HISTORY": "history"})[0]
        for rank in range(2)
    ]  # fmt: skip
    leader, follower = (run.wait() for run in runs)
    assert (follower.out, follower.err.count("\n")) == ("", 1)
    assert not re.search("warning|error", leader.err), leader.err
    assert leader.code == follower.code
    found = leader.finding("host-failed-before")
    assert found["nodes"] == ["node2"]
    lines = {path.name: path.read_text().splitlines() for path in (tmp_path / "history").iterdir()}
    assert {name: len(text) for name, text in lines.items()} == {"node1.jsonl": 1, "node2.jsonl": 4}
    ours = [json.loads(text[-1]) for text in lines.values()]
    assert {(run["command"], run["verdict"]) for run in ours} == {("net", leader.report["verdict"])}
    assert len({run["run"] for run in ours}) == 1


def test_a_leader_that_is_interrupted_while_it_writes_the_history_has_told_the_verdict(by_hand, tmp_path):
    (tmp_path / "history").mkdir()
    output = tmp_path / "report"
    more = ("--history", "history", "--format", "json")
    with (tmp_path / "history" / "node1.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # a writer waits a second for it
        env = {"SLURMD_NODENAME": "node1"}
        (leader,) = by_hand("net", [0], 2, *more, "--output", str(output), env=env)
        (follower,) = by_hand("net", [1], 2, *more, env=env)
        until(output.exists, STARTING_SECONDS + 30)
        leader.interrupt(signal.SIGINT)
        ended, told = leader.wait(), follower.wait()
    assert ended.code == 130
    assert json.loads(output.read_text())["exit_code"] == told.code == 0
    assert (told.out, told.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", [("node",), ("net", "--nproc", "2")])
def test_a_folder_that_does_not_answer_costs_its_time_and_not_the_run(distcheck, command, tmp_path):
    """A child that hangs, as it would in an open() on a dead NFS server."""
    hang = "lambda event, about: event == 'open' and '.jsonl' in str(about[0]) and time.sleep(60)"
    env = planted(tmp_path, f"import sys, time\nsys.addaudithook({hang})\n")
    done = distcheck(*command, "--timeout", "10", "--history", ".", env=env)
    assert done.code == 0
    assert done.seconds < 10 + STARTING_SECONDS
    assert re.search(r"not checked: --history: the history \. did not answer within 3 s", done.out)
    (warning,) = done.err.splitlines()
    assert warning.startswith("distcheck: warning: --history: this run is not recorded")
