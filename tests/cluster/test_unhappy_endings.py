"""Nodes that freeze, lose their cables or run out of room in the middle of a run: named, in time, by everybody left."""

from __future__ import annotations

import signal
import sysconfig
import time

import psutil
import pytest
from cluster.inside import NODES, judged, reports
from cluster.reaching import on
from forms.sampled import sampled
from real.ended import BEYOND_SECONDS
from real.spoiling import SHARED_MEMORY, site
from real.waiting import until

pytestmark = pytest.mark.without_slurm

SITE = f"{sysconfig.get_paths()['purelib']}/sitecustomize.py"
LONG = ("--sizes", "16M:16M", "--op", "all_reduce", "--iters", "4000")
SMALL = ("--sizes", "1M:1M", "--op", "all_reduce")
GATE = ("gate", *SMALL, "--hosts", "node[1-4]", "--nproc", "2", "--timeout", "120")
TIMEOUT = 30


def errors(report):
    return [(f["rule"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] == "error"]


def busy(cluster, nodes):
    """Whether ranks on all of these nodes have been told to measure: each has a second thread from then on."""
    there = cluster.processes()
    return all(any(map(measures, there.get(node, ()))) for node in nodes)


def measures(process):
    try:
        return process.name().startswith("distcheck r") and process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def wait_until_busy(cluster, nodes, runs):
    until(lambda: busy(cluster, nodes) or any(run.process.poll() is not None for run in runs))
    assert all(run.process.poll() is None for run in runs), [run.wait() for run in runs]
    time.sleep(1)


@pytest.fixture
def by_hand(cluster):
    """Start one rank on each of three nodes, and return the runs when they are in the middle of the collectives."""

    def start(timeout=TIMEOUT):
        meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}
        words = ("distcheck", "bandwidth", *LONG, "--timeout", str(timeout), "--format", "json")
        runs = [cluster.start(node, *words, env={**meeting, "RANK": str(n)}) for n, node in enumerate(NODES[:3])]
        wait_until_busy(cluster, NODES[:3], runs)
        return runs

    return start


@pytest.mark.parametrize("fault", sampled(["freeze", "cut"], "cut"))
def test_only_a_node_lost_in_the_collectives_is_named_by_all(cluster, by_hand, fault):
    runs = by_hand()
    getattr(cluster, fault)("node3")
    first, second = (run.wait(TIMEOUT + 30) for run in runs[:2])
    (report,) = reports(first)
    assert [(ranks, nodes) for _, ranks, nodes in errors(report)] == [([2], ["node3"])], report["findings"]
    assert (first.code, second.code) == (20, 20)
    assert max(first.seconds, second.seconds) < TIMEOUT + BEYOND_SECONDS
    assert report["ranks"][2]["stage"] == "collectives"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["freeze", "cut", "stop"])
def test_all_others_report_the_loss_of_rank_0s_node_and_end_alike(cluster, by_hand, fault):
    runs = by_hand()
    getattr(cluster, fault)("node1")
    ended = [run.wait(TIMEOUT + 30) for run in runs[1:]]
    for rank, end in enumerate(ended, start=1):
        (report,) = reports(end)
        assert errors(report) == [("probe-process-lost", [0], [])], report["findings"]
        assert f"in stage 'collectives', reported by rank {rank}" in report["findings"][0]["message"]
        assert end.code == 20
        assert end.seconds < TIMEOUT + BEYOND_SECONDS


def left(cluster):
    """Return what is on the nodes of the job besides their services: processes, and files in /tmp and /dev/shm."""
    processes = {node: len(there) for node, there in cluster.processes().items() if node in NODES}
    find = ("find", "/tmp", "/dev/shm", "-xdev", "-mindepth", "1")
    files = {node: cluster.run(node, *find, cwd="/").out for node in NODES}
    return processes, {node: there for node, there in files.items() if there}


@pytest.mark.parametrize("signum", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGTERM))
def test_a_signal_in_the_collectives_leaves_nothing_on_any_node(cluster, signum):
    before = left(cluster)[1]
    words = ("bandwidth", *LONG, "--hosts", "node[1-2]", "--nproc", "1", "--timeout", "90", "--format", "json")
    run = cluster.start("head", "distcheck", *words)
    wait_until_busy(cluster, NODES[:2], [run])
    start = time.monotonic()
    run.interrupt(signum)
    ended = run.wait(30)
    assert time.monotonic() - start < 20, "it does not wait for its --timeout"
    (report,) = reports(ended)
    assert (ended.code, report["verdict"]) == (128 + signum, "unknown")
    assert errors(report) == []
    until(lambda: not left(cluster)[0])
    assert left(cluster) == ({}, before)


def shrink(cluster, node):
    assert cluster.run(node, "mount", "-o", "remount,size=8m", "/dev/shm").code == 0


@pytest.mark.slow
def test_only_the_node_whose_small_dev_shm_kills_a_rank_is_named(cluster):
    shrink(cluster, "node3")
    for node in NODES:  # what data loaders and NCCL would take everywhere
        cluster.write(node, SITE, site(tuple(range(8)), SHARED_MEMORY, bytes=32 << 20))
    ended, report = judged(cluster, *GATE, timeout=200)
    died = [(f["rule"], f["nodes"]) for f in report["findings"] if f["rule"] == "collective-rank-died"]
    assert died == [("collective-rank-died", ["node3"])], report["findings"]
    assert ("isolation-bad-node", *on(3)) in errors(report), report["findings"]
    assert {node for _, _, nodes in errors(report) for node in nodes} == {"node3"}
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3"])
