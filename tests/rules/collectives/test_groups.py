"""Groups of a mesh that do not form, or are slower than their sisters."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from distcheck.facts.groups import GroupFigure
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives
from distcheck.facts.mesh import Mesh
from distcheck.facts.rank import RankRun

MESH = Mesh({"pp": 2, "dp": 2, "tp": 4})
"""On four nodes with four ranks each: tp within a node, dp between neighbours, pp between halves."""
DONE = {"step": "done", "outcome": "done"}


def figure(dimension, op, best: Sequence[float | None], **more):
    return GroupFigure(dimension, op, 1 << 20, seconds=tuple(best), best_seconds=tuple(best), **more)


def healthy():
    return [
        figure("pp", "send_recv", [0.01] * 8),
        figure("dp", "all_reduce", [0.01] * 8),
        figure("tp", "reduce_scatter", [0.002] * 4),
        figure("tp", "all_gather", [0.002] * 4),
    ]


@pytest.fixture
def grouped(job_of, change):
    """Return a job whose groups were measured; `runs` has how ranks ended that did not end well."""

    def build(figures=None, runs=None, per_node=(4, 4, 4, 4), backend="gloo", mesh=MESH):
        job = job_of(len(per_node), per_node, looks=("environment", "meeting", "collectives"), mesh=mesh)
        for rank in range(sum(per_node)):
            job = change.rank(job, rank, run=RankRun(pid=100 + rank, **(runs or {}).get(rank, DONE)))
        ran = Collectives(backend, mesh=mesh, groups=tuple(healthy() if figures is None else figures))
        return change.job(job, collectives=ran)

    return build


def slow_on(node, seconds=0.1):
    """Return the figures of a job in which what crosses the network of a node (0 to 3) is slow."""
    ranks = range(4 * node, 4 * node + 4)
    found = healthy()
    for number, dimension in enumerate(("pp", "dp")):
        best = [seconds if set(group) & set(ranks) else 0.01 for group in MESH.groups(dimension)]
        found[number] = figure(dimension, found[number].op, best)
    return found


def findings(diagnosis):
    return [f for f in diagnosis.findings if f.rule.endswith(("group-slow", "group-incomplete"))]


def test_groups_that_are_alike_are_no_finding(grouped, judge):
    diagnosis = judge(grouped(), "collectives.groups")
    assert (findings(diagnosis), diagnosis.not_checked) == ([], ())


@pytest.mark.parametrize("node", range(4))
def test_a_slow_node_is_what_the_slow_groups_have_in_common(grouped, judge, node):
    (found,) = findings(judge(grouped(slow_on(node)), "collectives.groups"))
    assert (found.rule, found.severity, found.scope, found.confirmed) == ("perf-group-slow", "warning", "link", False)
    assert found.nodes == (f"node{node + 1}",)
    assert "4 of 8 pp groups and 4 of 8 dp groups are slow" in found.message
    assert f"10% of the speed of its sister groups in send_recv of 1 MiB; each of them has ranks on node{node + 1}" in (
        found.message
    )
    assert found.ranks == tuple(range(4 * node, 4 * node + 4)), "ranks elsewhere in these groups are innocent"
    assert len(found.evidence) == 8


def test_what_a_search_found_is_beside_the_slow_groups(grouped, judge, change):
    searched = Isolation(kind="healthy", sentence="all 4 nodes work, alone and together")
    (found,) = findings(judge(change.job(grouped(slow_on(1)), isolation=searched), "collectives.groups"))
    assert found.evidence["isolation"] == "all 4 nodes work, alone and together"


def test_wrong_numbers_in_a_group_name_the_group(grouped, judge):
    wrong = {"all_reduce": 0, "all_reduce in dp": 3}
    runs = {5: {**DONE, "wrong": wrong, "checked": dict.fromkeys(wrong, 262_147)}}
    (found,) = judge(grouped(runs=runs), "collectives.outcome").findings
    assert (found.rule, found.ranks) == ("collective-wrong-result", (5,))
    assert found.evidence == {"all_reduce in dp": "wrong elements of 262147: 3 on rank 5; group of ranks 1,5"}


def test_one_slow_group_is_named_with_its_ranks_and_nodes(grouped, judge):
    best = [0.01] * 8
    best[5] = 0.05
    figures = [figure("dp", "all_reduce", best), *healthy()[2:]]
    (found,) = findings(judge(grouped(figures, backend="nccl"), "collectives.groups"))
    assert found.ranks == (9, 13)
    assert found.nodes == ("node3", "node4")
    assert found.message.startswith(
        "1 of 8 dp groups is slow: the dp group of ranks 9,13 (node3 and node4) reaches 20%"
    )
    # On CPUs the other three groups between these nodes show that only this one waited for a core.
    assert findings(judge(grouped(figures), "collectives.groups")) == []


def test_what_gloo_shows_under_load_is_no_finding_and_on_gpus_it_is(grouped, judge):
    best = [0.01, 0.0101, 0.0099, 0.01, 0.0102, 0.01, 0.0098, 0.018]
    assert findings(judge(grouped([figure("dp", "all_reduce", best)]), "collectives.groups")) == []
    (found,) = findings(judge(grouped([figure("dp", "all_reduce", best)], backend="nccl"), "collectives.groups"))
    assert (found.severity, found.ranks) == ("warning", (11, 15))
    best[7] = 0.03
    (found,) = findings(judge(grouped([figure("dp", "all_reduce", best)], backend="nccl"), "collectives.groups"))
    assert (found.severity, found.ranks) == ("error", (11, 15))


@pytest.mark.parametrize("kind", ["seconds", "best_seconds"])
def test_a_group_that_is_slow_in_some_bursts_only_is_no_finding(grouped, judge, kind):
    slow = replace(healthy()[1], **{kind: (0.01,) * 4 + (0.2,) * 4})
    assert findings(judge(grouped([slow]), "collectives.groups")) == []
    both = replace(slow, seconds=getattr(slow, kind), best_seconds=getattr(slow, kind))
    assert findings(judge(grouped([both]), "collectives.groups"))


@pytest.mark.parametrize(
    ("seconds", "own", "named"),
    [
        # What a node under a CPU limit shows, beside sisters that wait for busy CPUs: none of it is a wait for others.
        ((0.0022, 0.0025, 0.0100, 0.0015), (1e-9, 1e-9, 0.0098, 1e-9), ("node3",)),
        ((0.0007, 0.0016, 0.0047, 0.0009), (1e-9, 1e-9, 0.0042, 1e-9), ("node3",)),
        # What a healthy job shows beside busy loops: its ranks wait for most of that time.
        ((0.0014, 0.0014, 0.0125, 0.0015), (1e-9, 1e-9, 0.0010, 1e-9), ()),
        ((0.0020, 0.0014, 0.0020, 0.0018), (0.0020, 0.0014, 0.0020, 0.0018), ()),
    ],
)
def test_on_cpus_a_group_is_slow_by_what_is_not_a_wait_for_others(grouped, judge, seconds, own, named):
    best = (0.0006, 0.0009, 0.0004, 0.0007)  # a short burst may lie between two periods of a limit
    slow = GroupFigure("tp", "all_gather", 1 << 20, seconds=seconds, best_seconds=best, own_seconds=own)
    assert [f.nodes for f in findings(judge(grouped([slow]), "collectives.groups"))] == [named] * bool(named)


def test_groups_of_single_ranks_of_nodes_are_not_blamed_for_waiting(grouped, judge):
    """`hsdp=2x2` on four nodes with a rank each: no other group is between the same nodes."""
    mesh = Mesh({"replicate": 2, "shard": 2})
    for own, named in (((1e-9, 0.001), ()), ((0.0097, 0.001), ("node1", "node2"))):
        waited = GroupFigure("shard", "all_gather", 1 << 20, seconds=(0.0097, 0.0015), best_seconds=(0.0089, 0.0013))
        job = grouped([replace(waited, own_seconds=own)], per_node=(1, 1, 1, 1), mesh=mesh)
        assert [f.nodes for f in findings(judge(job, "collectives.groups"))] == [named] * bool(named)


def test_a_file_with_figures_of_no_bytes_is_judged_without_a_crash(grouped, judge):
    nothing = replace(healthy()[1], bytes=0)
    assert judge(grouped([nothing, *healthy()[2:]]), "collectives.groups").findings == ()


def test_groups_of_another_shape_are_not_compared(grouped, judge):
    figures = [figure("tp", "all_gather", [0.002, 0.03, 0.002, 0.002])]
    mesh = Mesh({"dp": 4, "tp": 4})
    (found,) = findings(judge(grouped(figures, mesh=mesh), "collectives.groups"))
    assert (found.ranks, found.nodes) == ((4, 5, 6, 7), ("node2",))
    # On 6, 6 and 4 ranks the second group is the only one across nodes: slower, and no fault.
    assert findings(judge(grouped(figures, mesh=mesh, per_node=(6, 6, 4)), "collectives.groups")) == []


def test_a_group_without_a_figure_is_required_and_an_operation_that_gloo_lacks_is_not(grouped, judge):
    figures = [*healthy()[:2], figure("tp", "reduce_scatter", [], lacks="gloo of this torch: no"), healthy()[3]]
    (gap,) = judge(grouped(figures), "collectives.groups").not_checked
    assert (gap.required, gap.reason) == (False, "reduce_scatter in tp not measured: gloo of this torch: no")
    (gap,) = judge(
        grouped([figure("pp", "send_recv", [0.01] * 7 + [None]), *healthy()[2:]]), "collectives.groups"
    ).not_checked
    assert (gap.required, gap.reason) == (
        True,
        "no figure for send_recv in pp and all_reduce in dp; raise --timeout",
    )


AWAITS = {
    "step": "dp: form groups",
    "outcome": "failed",
    "detail": "AbsentError: rank 5 did not come to form the dp group from rank 1",
    "absent": (5,),
}
WAITS = {"step": "dp: form groups", "outcome": "stalled"}


def test_the_rank_that_did_not_come_is_named_and_not_the_one_that_says_so(grouped, judge):
    runs = dict.fromkeys(range(16), WAITS) | {
        1: AWAITS,
        5: {"step": "pp: wait for the other groups", "outcome": "stalled"},
    }
    diagnosis = judge(grouped([], runs), "collectives.groups", "collectives.outcome")
    (found,) = diagnosis.findings
    assert (found.rule, found.ranks, found.nodes) == ("collective-group-incomplete", (5,), ("node2",))
    assert (found.scope, found.confirmed) == ("node", False)
    assert found.message == "rank 5 (node2) did not come to form its dp group; the other ranks waited"
    assert diagnosis.verdict.exit_code == 20


@pytest.mark.parametrize(
    "cause",
    [
        {"outcome": "stopped", "step": "started"},
        {"outcome": "died", "step": "started", "detail": "was killed by SIGKILL"},
    ],
)
def test_a_rank_that_was_stopped_or_died_has_its_own_rule(grouped, judge, cause):
    runs = dict.fromkeys(range(16), WAITS) | {1: AWAITS, 5: cause}
    diagnosis = judge(grouped([], runs), "collectives.groups", "collectives.outcome")
    assert [(f.rule, f.ranks) for f in diagnosis.findings] == [(f"collective-rank-{cause['outcome']}", (5,))]


def test_ranks_that_hang_in_their_group_are_named_and_not_those_that_wait_for_other_groups(grouped, judge):
    waits = {"step": "dp: wait for the other groups", "outcome": "stalled", "place": 14}
    hangs = {"step": "dp: all_reduce 1048576 B in all groups", "outcome": "stalled", "place": 13}
    runs = dict.fromkeys(range(16), waits) | {1: hangs, 5: hangs}
    (found,) = judge(grouped([], runs), "collectives.outcome").findings
    assert (found.rule, found.ranks, found.nodes) == ("collective-stalled", (1, 5), ("node1", "node2"))
    assert "made less progress than the others" in found.message
