"""`distcheck isolate` on real nodes: the bad one is named, or the link, and nobody else."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from cluster.inside import NODES, findings, reports
from cluster.reaching import on

SITE = f"{sysconfig.get_paths()['purelib']}/sitecustomize.py"
# Spoils what this node's ranks do, as soon as torch.distributed is there; the kinds are functions of the tensor.
SPOILED = """
import builtins, os, signal, sys, time
_real, _done = builtins.__import__, []
def _spoil(dist):
    whole = dist.all_reduce
    def wrong(tensor, *args, **more):
        whole(tensor, *args, **more)
        tensor[:3] += 1
    def hangs(tensor, *args, **more):
        time.sleep(600)
    def dies(tensor, *args, **more):
        os.kill(os.getpid(), signal.SIGKILL)
    def raises(tensor, *args, **more):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    dist.all_reduce = locals()[{kind!r}]
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    dist = sys.modules.get("torch.distributed")
    if not _done and hasattr(dist, "broadcast_object_list"):
        _done.append(_spoil(dist))
    return module
builtins.__import__ = _import
"""


def spoil(cluster, node, kind):
    cluster.write(node, SITE, SPOILED.replace("{kind!r}", repr(kind)))


def isolate(cluster, *words, nodes=4, command="isolate"):
    hosts = f"node[1-{nodes}]"
    look = ("distcheck", command, "--hosts", hosts, "--nproc", "2", "--timeout", "200", "--format", "json", *words)
    ended = cluster.run("head", *look, timeout=300)
    assert ended.out, ended
    (report,) = reports(ended)
    return ended, report


def told(report):
    return [(f["rule"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_healthy_nodes_are_blamed_for_nothing(cluster, nodes):
    ended, report = isolate(cluster, nodes=nodes)
    assert (ended.code, told(report)) == (0, []), report["findings"]


# On node1 is rank 0, and the process that leads the search.
@pytest.mark.parametrize(
    ("node", "kind"),
    [("node3", "wrong"), ("node3", "hangs"), ("node3", "dies"), ("node2", "raises"), ("node1", "hangs")],
)
def test_a_bad_node_is_named_and_left_out(cluster, kind, node):
    spoil(cluster, node, kind)
    ended, report = isolate(cluster)
    assert told(report) == [("isolation-bad-node", *on(int(node[-1])))], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, [node])


def test_two_bad_nodes_of_four_are_both_named(cluster):
    spoil(cluster, "node2", "raises")
    spoil(cluster, "node4", "wrong")
    ended, report = isolate(cluster)
    named = {node for rule, _, nodes in told(report) for node in nodes}
    assert (ended.code, named) == (40, {"node2", "node4"}), report["findings"]


def test_where_every_node_fails_nobody_is_left_out(cluster):
    for node in ("node1", "node2"):
        spoil(cluster, node, "raises")
    ended, report = isolate(cluster, nodes=2)
    assert (ended.code, report["exclude"]["nodes"]) == (20, []), report["findings"]


def test_a_node_that_computes_slowly_is_named_and_not_those_that_wait_for_it(cluster):
    # Each piece of its own work takes 10 ms longer, where less than one is usual.
    work = Path(__file__).parents[2] / "distcheck/collectives/compute.py"
    slowed = ("sed", "-i", "s/^        call()$/        call(); time.sleep(0.01)/", str(work))
    assert cluster.run("node2", *slowed).code == 0
    ended, report = isolate(cluster)
    assert told(report) == [("isolation-slow-node", *on(2))], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])


def test_three_nodes_can_tell_too(cluster):
    spoil(cluster, "node2", "hangs")
    ended, report = isolate(cluster, nodes=3)
    assert told(report) == [("isolation-bad-node", *on(2))], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])


def closed(cluster, node, *others):
    """Let a node take no new connections of others on ports that the kernel chooses."""
    sources = ", ".join(f"10.77.0.1{other[-1]}" for other in others)
    rules = (
        "add table inet f; add chain inet f in { type filter hook input priority 0; }; "
        f"add rule inet f in ip saddr {{ {sources} }} tcp dport 32768-60999 tcp flags & (syn | ack) == syn drop"
    )
    ended = cluster.netns(node, "nft", rules)
    assert ended.code == 0, ended


def test_a_node_that_nobody_reaches_is_named(cluster):
    closed(cluster, "node2", *(node for node in NODES if node != "node2"))
    for node in NODES:
        if node != "node2":
            closed(cluster, node, "node2")
    ended, report = isolate(cluster)
    assert told(report) == [("isolation-bad-node", *on(2))], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])


def test_a_bad_pair_is_a_link_and_no_nodes_fault(cluster):
    closed(cluster, "node2", "node3")
    closed(cluster, "node3", "node2")
    ended, report = isolate(cluster)
    (found,) = told(report)
    # On a machine that is too busy another pair hangs as well now and then; nobody is blamed for that either.
    assert found in [
        ("isolation-bad-link", *on(2, 3)),
        ("isolation-boundary", [], []),
        ("isolation-undecided", *on(2, 3)),
    ], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (20, [])


def test_of_two_nodes_nobody_can_tell_which_one(cluster):
    closed(cluster, "node1", "node2")
    closed(cluster, "node2", "node1")
    ended, report = isolate(cluster, nodes=2)
    assert [rule for rule, _, _ in told(report)] == ["isolation-undecided"], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (20, [])
    assert "spare" in report["findings"][0]["message"]


def test_a_gate_that_goes_wrong_says_by_whom(cluster):
    spoil(cluster, "node3", "wrong")
    ended, report = isolate(cluster, command="gate")
    assert ("isolation-bad-node", *on(3)) in told(report), report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3"])
    assert findings(report, "error")[0] == "collective-wrong-result"
