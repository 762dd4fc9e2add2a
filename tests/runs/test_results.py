"""What the processes of a group reported, as the one result that the search judges."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from isolation.simulator import convicted
from made.jobs import healthy_job

from distcheck.collectives.plan import Computed, Timing
from distcheck.facts.members import Members
from distcheck.facts.rank import RankRun
from distcheck.isolation.round import NodeGroup, Round
from distcheck.isolation.schedule import next_round, take
from distcheck.isolation.state import start
from distcheck.rollcall.protocol import RunReport
from distcheck.run.results import result_of

replace = msgspec.structs.replace
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
FULL_GBPS = 40.0
BYTES = 64 << 20


def nodes_with(*models, ranks=8, boots=None):
    """Return a job of nodes with GPUs of these models; `boots` says which of them are one machine."""
    job = healthy_job(len(models), ranks, looks=("environment", "meeting", "isolation"), gpus=8, command="isolate")
    nodes = tuple(
        replace(
            node,
            boot_id=boots[place] if boots else node.boot_id,
            gpus=replace(node.gpus, devices=tuple(replace(gpu, name=models[place]) for gpu in node.gpus.devices)),
        )
        for place, node in enumerate(job.nodes)
    )
    return replace(job, nodes=nodes)


def reports_of(members, group, work=None, busbw=None):
    """Return the reports of a group's processes: `work` is the speed of each node, `busbw` that of the collective."""
    parts = members.parts(group.nodes)
    size = sum(map(len, parts.values()))
    seconds = BYTES / 1e9 / (busbw or FULL_GBPS) * 2 * (size - 1) / size
    timing = Timing("all_reduce", BYTES, "float32", 10, (seconds,), "asked")
    home = {uid: node for node, here in members.by_node.items() for uid in here}
    return {
        uid: RunReport(
            runs={rank: RankRun(1, "done", "done") for rank in ranks},
            timings=tuple((rank, timing) for rank in ranks),
            computed={rank: Computed(0.01 / speed, 0.002 / speed, 0) for rank in ranks}
            if group.purpose == "alone" and (speed := (work or {}).get(home[uid], 1.0))
            else {},
        )
        for uid, ranks in parts.items()
    }


def searched(job, backend="nccl", work=None, busbw=None):
    """Search a job to its end; `busbw` tells the speed of a group by its nodes."""
    members = Members(job)
    state = start(members.by_node)
    while isinstance(step := next_round(state), Round):
        results = [
            result_of(
                number, group, members,
                reports_of(members, group, work, busbw(group.nodes) if busbw else None), backend,
            )
            for number, group in enumerate(step.groups)
        ]  # fmt: skip
        state = take(state, step, results)
    return step


def test_the_group_of_healthy_nodes_has_a_speed_and_its_ranks_a_device():
    members = Members(nodes_with(H100))
    group = NodeGroup(("node1",), "alone")
    result = result_of(3, group, members, reports_of(members, group), "nccl")
    assert (result.group, result.ended, result.said) == (3, "passed", ())
    assert result.busbw_GBps == pytest.approx(FULL_GBPS)
    assert [(each.node, each.local_rank, each.device) for each in result.compute] == [
        ("node1", local_rank, H100) for local_rank in range(8)
    ]


@pytest.mark.parametrize("models", [(H100, A100), (H100, H100, H100, A100), (A100, H100, A100, H100)])
def test_ranks_on_a_slower_model_are_held_to_those_of_their_model(models):
    verdict = searched(nodes_with(*models), work={f"node{n}": 0.42 for n, m in enumerate(models, 1) if m == A100})
    assert (verdict.kind, convicted(verdict)) == ("healthy", ())


@pytest.mark.parametrize(("backend", "models"), [("nccl", (H100,) * 4), ("gloo", (H100, H100, H100, A100))])
def test_a_node_that_is_slow_among_its_like_is_convicted(backend, models):
    verdict = searched(nodes_with(*models), backend, work={"node4": 0.1})
    assert (verdict.kind, convicted(verdict)) == ("found", ("node4",))


def test_a_rank_whose_gpu_is_not_known_is_of_its_nodes_model_and_without_models_of_the_backend():
    job = nodes_with(H100, A100)
    slice_of_it = tuple(replace(gpu, mig_uuids=(f"MIG-{gpu.index}",)) for gpu in job.nodes[0].gpus.devices)
    nodes = (replace(job.nodes[0], gpus=replace(job.nodes[0].gpus, devices=slice_of_it)), job.nodes[1])
    ranks = (replace(job.ranks[0], gpu=None), replace(job.ranks[1], gpu="MIG-1"), *job.ranks[2:])
    members = Members(replace(job, nodes=nodes, ranks=ranks))
    assert members.device("node1", 1, "nccl") == f"part of {H100}"
    assert members.device("node1", 2, "nccl") == H100
    assert Members(replace(job, ranks=ranks)).device("node1", 0, "nccl") == H100
    blind = Members(replace(job, nodes=tuple(replace(node, gpus=None) for node in job.nodes)))
    assert (blind.device("node1", 0, "nccl"), members.device("node1", 0, "gloo")) == ("nccl", "gloo")


def test_pods_of_one_machine_are_nearer_to_each_other_than_a_third_is_to_both():
    job = nodes_with(H100, H100, H100, boots=("one", "one", "other"))

    def busbw(nodes):
        return FULL_GBPS if nodes == ("node1", "node2") or len(nodes) == 1 else 0.4 * FULL_GBPS

    assert searched(job, busbw=busbw).kind == "healthy"
    apart = searched(nodes_with(H100, H100, H100), busbw=busbw)
    assert (apart.kind, convicted(apart)) == ("found", ("node3",))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (nodes_with(H100), ()),
        (nodes_with(H100, H100), ("node1", "node2")),
        (nodes_with(H100, H100, H100), ()),
        (nodes_with(H100, H100, H100, A100), ("node4",)),
        (nodes_with(H100, A100, H100, A100), ()),
        (nodes_with(H100, H100, H100, ranks=(8, 8, 4)), ("node3",)),
        (nodes_with(*[H100] * 8, ranks=(*[8] * 7, 4)), ("node8",)),
        (nodes_with(H100, H100, H100, boots=("one", "one", "other")), ("node3",)),
        (nodes_with(*[H100] * 4, boots=("one", "one", "other", "other")), ()),
        (nodes_with(*[H100] * 3, boots=("one",) * 3), ()),
    ],
)
def test_a_node_that_no_two_others_are_like_is_known(job, expected):
    members = Members(job)
    assert members.without_like() == expected
    names = list(members.by_node)
    likes = [(pair, members.like(pair)) for pair in itertools.combinations(names, 2)]
    assert set(expected) == {
        name
        for name in names
        if likes and all(name in pair for pair, like in likes if like in {like for own, like in likes if name in own})
    }
