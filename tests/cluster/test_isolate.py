"""`distcheck isolate` on real nodes: the bad one is named, or the link, and nobody else."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from cluster.inside import filtered, findings, judged, limit, reports
from cluster.reaching import on
from forms.sampled import sampled
from real.spoiling import DIE, FREEZE, RAISE, SITE, WRONG, site

pytestmark = pytest.mark.without_slurm

TIMEOUT = 200


def spoil(cluster, node, body):
    """Have what this node's ranks do go wrong, as soon as torch.distributed is there."""
    cluster.write(node, SITE, site(None, body))


@pytest.fixture
def isolate(cluster):
    """Run a search on the first nodes, or another command; `pytest -rP` shows how long it took."""

    def isolate(*words, nodes=4, command="isolate"):
        look = (command, "--hosts", f"node[1-{nodes}]", "--nproc", "2", "--timeout", str(TIMEOUT))
        ended, report = judged(cluster, *look, *words, timeout=TIMEOUT + 100)
        print(f"{command} of {nodes} nodes took {ended.seconds:.1f} s and ended with {ended.code}")
        assert ended.seconds < TIMEOUT + 5
        print(*(f["message"] for f in report["findings"]), *(n["reason"] for n in report["not_checked"]), sep="\n")
        return ended, report

    return isolate


def told(report):
    return [(f["rule"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] != "info"]


def drops(cluster, node, megabytes=1):
    """Let the first megabytes between ports that the kernel chooses through to a node, and nothing after it."""
    filtered(
        cluster, node, f"iifname eth0 tcp sport 32768-60999 tcp dport 32768-60999 quota over {megabytes} mbytes drop"
    )


def slow_network(cluster, node):
    """The others reach more than ten times as much."""
    limit(cluster, node, 100)


def slow_cpu(cluster, node):
    """Let each piece of a node's own work take 10 ms longer, where half a millisecond is usual."""
    work = Path(__file__).parents[2] / "distcheck/collectives/compute.py"
    slowed = ("sed", "-i", "s/^        call()$/        call(); time.sleep(0.01)/", str(work))
    assert cluster.run(node, *slowed).code == 0


def spoils(body):
    return lambda cluster, node: spoil(cluster, node, body)


FAULTS = {
    "drops data after the start": drops,
    "wrong result": spoils(WRONG),
    "slow network": slow_network,
    "slow CPU": slow_cpu,
    "frozen in a collective": spoils(FREEZE),
    "killed in a collective": spoils(DIE),
}
SHOWS_WITH_OTHERS = {"drops data after the start", "slow network"}
"""The rest shows on the node by itself, so that it is known of two nodes as well."""
BAD = {2: "node2", 3: "node1", 4: "node3"}
"""Of so many nodes; on node1 are rank 0 and the process that leads the search."""


@pytest.mark.parametrize("nodes", sampled([2, 3, 4], 4))
def test_healthy_nodes_are_blamed_for_nothing(isolate, nodes):
    ended, report = isolate(nodes=nodes)
    assert (ended.code, told(report)) == (0, []), report["findings"]


# In every change a gate of four nodes searches, and `isolate` on two; tests/isolation has all faults in a simulator.
@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "fault"), list(product([3, 4], FAULTS)))
def test_only_the_bad_node_is_named(cluster, isolate, nodes, fault):
    node = BAD[nodes]
    FAULTS[fault](cluster, node)
    ended, report = isolate(nodes=nodes)
    rule = "isolation-slow-node" if fault.startswith("slow") else "isolation-bad-node"
    assert told(report) == [(rule, *on(int(node[-1])))], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, [node])


@pytest.mark.parametrize("fault", sampled(sorted(FAULTS.keys() - SHOWS_WITH_OTHERS), "killed in a collective"))
def test_of_two_nodes_the_one_that_is_bad_by_itself_is_named(cluster, isolate, fault):
    FAULTS[fault](cluster, "node2")
    ended, report = isolate(nodes=2)
    assert {nodes for _, _, (nodes,) in told(report)} == {"node2"}, report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])


@pytest.mark.slow
def test_of_two_nodes_that_fail_together_neither_is_blamed(cluster, isolate):
    drops(cluster, "node2")
    ended, report = isolate(nodes=2)
    assert [rule for rule, _, _ in told(report)] == ["isolation-undecided"], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (20, [])
    assert "a spare node would decide" in report["findings"][0]["message"]


@pytest.mark.slow
def test_a_node_cut_off_during_the_search_is_lost_and_no_node_is_blamed(cluster):
    words = ("isolate", "--hosts", "node[1-4]", "--nproc", "2", "--format", "json", "--timeout", "60")
    running = cluster.start("head", "distcheck", *words)
    for line in running.process.stderr:
        if "round 1" in line:
            break
    cluster.cut("node3")
    ended = running.wait(100)
    print(f"took {ended.seconds:.1f} s and ended with {ended.code}")
    (report,) = reports(ended)
    assert not [rule for rule, _, _ in told(report) if rule.startswith("isolation")], report["findings"]
    assert {node for _, _, nodes in told(report) for node in nodes} == {"node3"}, report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (20, [])
    assert ended.seconds < 65


def test_if_every_node_fails_none_is_excluded(cluster, isolate):
    for node in ("node1", "node2"):
        spoil(cluster, node, RAISE)
    ended, report = isolate(nodes=2)
    assert (ended.code, report["exclude"]["nodes"]) == (20, []), report["findings"]


def closed(cluster, node, *others):
    """Let a node take no new connections of others on ephemeral ports."""
    sources = ", ".join(f"10.77.0.1{other[-1]}" for other in others)
    filtered(cluster, node, f"ip saddr {{ {sources} }} tcp dport 32768-60999 tcp flags & (syn | ack) == syn drop")


@pytest.mark.slow
def test_a_bad_pair_is_a_link_and_blames_no_node(cluster, isolate):
    closed(cluster, "node2", "node3")
    closed(cluster, "node3", "node2")
    ended, report = isolate()
    (found,) = told(report)
    # On a machine that is too busy another pair hangs as well now and then; nobody is blamed for that either.
    assert found in [
        ("isolation-bad-link", *on(2, 3)),
        ("isolation-boundary", [], []),
        ("isolation-undecided", *on(2, 3)),
    ], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (20, [])


GATED = {
    "drops data after the start": ("collective-stalled", lambda cluster, node: drops(cluster, node, 60)),
    "wrong result": ("collective-wrong-result", FAULTS["wrong result"]),
    "slow network": ("net-nic-down-or-slow", slow_network),
    "frozen in a collective": ("collective-rank-stopped", FAULTS["frozen in a collective"]),
    "killed in a collective": ("collective-rank-died", FAULTS["killed in a collective"]),
}
"""What a gate sees first; what of the data gets through has to be enough for its look at all ways between nodes."""


@pytest.mark.parametrize("fault", sampled(list(GATED), "wrong result"))
def test_a_failed_gate_names_the_culprit(cluster, isolate, fault):
    first, spoils = GATED[fault]
    spoils(cluster, "node3")
    ended, report = isolate(command="gate")
    rule = "isolation-slow-node" if fault.startswith("slow") else "isolation-bad-node"
    assert (rule, *on(3)) in told(report), report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3"])
    assert first in findings(report)


@pytest.mark.slow
def test_a_gate_waits_for_a_node_that_imports_torch_late(cluster):
    late = "import sys, time\nclass Late:\n    find_spec = lambda name, *_: time.sleep(13 * (name == 'torch._C'))\n"
    cluster.write("node2", SITE, f"{late}sys.meta_path.insert(0, Late)\n")
    look = ("gate", "--hosts", "node[1-2]", "--nproc", "2", "--timeout", "26")
    ended, report = judged(cluster, *look, timeout=100)
    assert (ended.code, findings(report), "isolation" in report) == (0, [], False), report["findings"]
    assert ended.seconds > 13, "the import was late"
