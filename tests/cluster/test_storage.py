"""Two nodes whose folders differ: mounted wrongly, read-only, full, hung, absent; and copies of COMMAND's files."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from cluster.inside import reports
from real.ended import BEYOND_SECONDS
from real.waiting import until

HUNG = Path(__file__).parents[1] / "fakes" / "hung_mount.py"
PATH = re.compile(r"/p/[a-z/]+")
FOLDERS = ("same", "mixed", "readonly", "full", "hung", "absent")
ON_NODE_1 = """
for f in same mixed readonly hung absent; do mkdir -p /shared/$f /p/$f && mount --bind /shared/$f /p/$f; done
mkdir /p/full && mount -t tmpfs full /p/full
"""
ON_NODE_2 = """
mkdir -p /p/same /p/mixed /p/readonly /p/hung /p/full && mount --bind /shared/same /p/same &&
mount -t tmpfs mixed /p/mixed && mount --bind /shared/readonly /p/readonly && mount -o remount,ro,bind /p/readonly &&
mount -t tmpfs -o size=1m full /p/full && dd if=/dev/zero of=/p/full/x bs=1k count=1024 2>/dev/null
mkfifo /p/same/fifo
"""


@pytest.fixture
def two(make_cluster):
    return make_cluster(2, slurm=False)


def left(cluster, *folders: str) -> list[str]:
    """Return distcheck's own files that lie in folders of the nodes."""
    look = ("find", *folders, "-xdev", "-name", ".distcheck*")
    return [line for node in cluster.nodes for line in cluster.run(node, *look).out.splitlines()]


def test_each_faulty_folder_is_named_on_its_node_and_a_hung_one_costs_only_itself(two):
    assert two.run("node1", "sh", "-c", ON_NODE_1).code == 0
    assert two.run("node2", "sh", "-c", ON_NODE_2).code == 0
    hung = two.start("node2", sys.executable, str(HUNG), "/p/hung")
    assert hung.process.stdout.readline() == "mounted\n"
    alone = two.start("node2", "distcheck", "node", "--path", "/p/hung", "--format", "json")
    paths = [word for folder in (*FOLDERS, "same/fifo") for word in ("--path", f"/p/{folder}")]
    ended = two.run("node1", "distcheck", "env", "--hosts", "node1,node2", "--format", "json", *paths)
    node = alone.wait()
    assert (node.code, node.rules) == (20, ["storage-hangs"])
    assert node.seconds < 10 + BEYOND_SECONDS
    two.run("node2", "kill", "-KILL", *two.run("node2", "pidof", sys.executable).out.split())
    (report,) = reports(ended)
    told = {(f["rule"], f["severity"], tuple(f["nodes"]), PATH.search(f["message"])[0]) for f in report["findings"]}
    assert told == {
        ("storage-path-missing", "error", ("node2",), "/p/absent"),
        ("storage-path-missing", "error", ("node1", "node2"), "/p/same/fifo"),
        ("storage-read-only", "error", ("node2",), "/p/readonly"),
        ("storage-full", "error", ("node2",), "/p/full"),
        ("storage-hangs", "error", ("node2",), "/p/hung"),
        ("storage-not-shared", "error", ("node2",), "/p/mixed"),
        ("storage-not-shared", "warning", ("node2",), "/p/full"),
    }, report["findings"]
    assert ended.code == 30
    assert left(two, *(f"/p/{folder}" for folder in FOLDERS), "/shared") == []


def test_the_file_of_a_leader_that_dies_is_removed_by_another_node(two):
    """The leader waits for a third rank that never comes, until its node loses all its processes."""
    variables = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}
    look = ("distcheck", "env", "--path", "/shared")
    first = two.start("node1", *look, env={**variables, "RANK": "0"})
    second = two.start("node2", *look, "--format", "json", env={**variables, "RANK": "1"})
    met = ("ss", "-Htn", "state", "established", "dport", ">", ":1023")
    until(lambda: "10.77" in two.netns("node1", *met).out)
    until(lambda: list(two.shared.glob(".distcheck-*")))
    time.sleep(1)
    assert len(list(two.shared.glob(".distcheck-*"))) == 1
    two.stop("node1")
    ended = second.wait(30)
    assert ended.code == 20, ended
    assert [name for name in two.shared.iterdir() if name.name.startswith(".distcheck")] == []
    first.close()
