"""Agents of an elastic torchrun that are added and killed, with distcheck in front of every attempt of the job."""

from __future__ import annotations

import json
import signal

import pytest
from real.agents import QUICK_TORCHRUN
from real.waiting import until

pytestmark = pytest.mark.without_slurm

AGENT = (
    f"{' '.join(QUICK_TORCHRUN)} --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --monitor-interval 0.1 "
    "--rdzv-backend c10d --rdzv-endpoint node1:29555 --rdzv-id job-7 "
    "--rdzv-conf last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,join_timeout=60,read_timeout=10 "
    "--no-python bash -c"
)
JOB = (
    "distcheck env --format json --output /shared/report-$WORLD_SIZE-$TORCHELASTIC_RESTART_COUNT-$RANK.json || exit 3; "
    "until [ -e /shared/fail-$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.1; done; "
    "exit $((TORCHELASTIC_RESTART_COUNT == 0))"
)
"""A job that fails in its first attempts when a test says so, and succeeds after a restart."""
NOT_SHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture
def start(cluster):
    """Start the agent of a node, which puts the job behind distcheck."""

    def start(node, **variables):
        env = {"OMP_NUM_THREADS": "1", **variables}
        return cluster.start(node, "bash", "-c", f"exec {AGENT} '{JOB}'", env=env)

    return start


@pytest.fixture
def report(cluster):
    """Wait for the report of an attempt: world size, restart and rank are in its name."""

    def report(name):
        path = cluster.shared / f"report-{name}.json"
        until(lambda: path.exists() and path.read_text().endswith("\n"), 90)
        return json.loads(path.read_text())

    return report


def changed(found):
    return [f for f in found["findings"] if f["rule"] == "elastic-nodes-changed"]


def test_nodes_that_join_and_leave_are_named_in_the_report_of_the_next_attempt(cluster, start, report):
    first = start("node1", **NOT_SHARED)
    alone = report("1-0-0")
    assert (alone["exit_code"], changed(alone)) == (0, [])

    second = start("node2", **NOT_SHARED)
    both = report("2-0-0")
    (joined,) = changed(both)
    assert (both["exit_code"], joined["severity"], joined["nodes"]) == (0, "info", ["node2"])
    assert "since torchrun's attempt 1, node2 joined" in joined["message"]
    assert [row["status"] for row in both["ranks"]] == ["ok", "ok"]

    second.interrupt(signal.SIGKILL)
    (cluster.shared / "fail-0").touch()
    left_alone = report("1-1-0")
    (left,) = changed(left_alone)
    assert (left_alone["exit_code"], left["severity"], left["nodes"]) == (0, "warning", ["node2"])
    assert "since torchrun's attempt 2, node2 left" in left["message"]
    assert [f["rule"] for f in left_alone["findings"] if f["severity"] != "info"] == ["elastic-nodes-changed"]
    (stale,) = [f for f in left_alone["findings"] if f["rule"] == "elastic-restart-stale"]
    assert "this is restart 1 of at most 3" in stale["message"]

    (cluster.shared / "fail-1").touch()
    assert first.wait(60).code == 0


@pytest.mark.slow  # it waits for a timeout of torch
def test_a_node_that_joins_ends_the_job_of_agents_that_share_their_store_as_the_report_says(start, report):
    first = start("node1")
    found = [f for f in report("1-0-0")["findings"] if f["severity"] != "info"]
    assert [f["rule"] for f in found] == ["elastic-join-blocked"]
    second = start("node2")
    ended = first.wait(90)
    second.interrupt(signal.SIGKILL)
    assert ended.code == 1
    assert "DistStoreError: wait timeout" in ended.err
    assert "torchelastic/role_info/0" in ended.err
