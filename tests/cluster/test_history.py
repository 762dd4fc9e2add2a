"""`--history` from outside the job: only the machine on which distcheck was started has the folder."""

from __future__ import annotations

import json
import time

from cluster.inside import finding, findings, judged


def test_the_starting_machine_reads_and_writes_the_history_of_all_nodes(cluster):
    bad = {"rule": "gpu-xid-recent", "severity": "error", "scope": "gpu", "confirmed": True}
    run = {"schema": 1, "node": "node2", "time": time.time(), "command": "net", "verdict": "node", "findings": [bad]}
    cluster.write(
        "head", "/tmp/history/node2.jsonl", "".join(json.dumps(run | {"run": str(n)}) + "\n" for n in range(3))
    )
    ended, report = judged(cluster, "net", "--hosts", "node[1-2]", "--nproc", "1", "--history", "/tmp/history")
    assert (ended.code, findings(report, "error", "warning")) == (0, ["host-failed-before"]), ended
    assert finding(report, "host-failed-before")["nodes"] == ["node2"]
    kept = cluster.run("head", "tail", "-n", "1", "/tmp/history/node1.jsonl", "/tmp/history/node2.jsonl").out
    ours = [json.loads(line) for line in kept.splitlines() if line.startswith("{")]
    assert [(run["node"], run["command"], run["verdict"]) for run in ours] == [
        ("node1", "net", "warn"), ("node2", "net", "warn")
    ]  # fmt: skip
    assert cluster.run("node1", "ls", "/tmp/history").code != 0
