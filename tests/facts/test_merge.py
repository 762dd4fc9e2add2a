"""GPUs as the processes of one node see them."""

from __future__ import annotations

import msgspec
import pytest
from made.jobs import healthy_job

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuHealth, Gpus
from distcheck.facts.merge import combine
from distcheck.rules import all_rules
from distcheck.rules.diagnose import diagnose

replace = msgspec.structs.replace


HUNG = "NVML did not answer within 10 s: a GPU or its driver hangs"


def views(*devices_of_each, health=(), unread=(), missing=()):
    """Return a node as each process tells it, which sees the GPUs at these places of the node; and the processes.

    Processes `health` have read the condition of what they see, `unread` have begun to, `missing` know no GPU.
    """
    job = healthy_job(1, len(devices_of_each), launcher="slurm", looks=("environment", "meeting", "gpu"), gpus=4)
    whole = job.nodes[0].gpus
    nodes = []
    for number, places in enumerate(devices_of_each):
        devices = tuple(
            replace(whole.devices[place], index=index, health=GpuHealth() if number in health else None)
            for index, place in enumerate(places)
        )
        gpus = replace(whole, devices=devices, unread=HUNG if number in unread else "")
        nodes.append(replace(job.nodes[0], gpus=Missing(reason=HUNG) if number in missing else gpus))
    return list(zip(nodes, job.processes, strict=True))


def test_processes_that_see_the_same_make_one_node():
    nodes, processes = combine(views(range(4), range(4)))
    (node,) = nodes.values()
    assert [gpu.index for gpu in node.gpus.devices] == [0, 1, 2, 3]
    assert [process.gpus for process in processes] == [None, None]


@pytest.mark.parametrize("reader", [0, 1])
def test_one_that_has_read_the_condition_speaks_for_all(reader):
    nodes, _ = combine(views(range(4), range(4), health=(reader,)))
    (node,) = nodes.values()
    assert all(gpu.health is not None for gpu in node.gpus.devices)


def test_processes_that_are_kept_to_their_own_make_a_node_with_all_of_them():
    nodes, processes = combine(views([2], [0], [3], health=(0, 1, 2)))
    (node,) = nodes.values()
    assert [(gpu.index, gpu.uuid) for gpu in node.gpus.devices] == [(0, "GPU-1-0"), (1, "GPU-1-2"), (2, "GPU-1-3")]
    assert all(gpu.health is not None for gpu in node.gpus.devices)
    assert [[gpu.uuid for gpu in process.gpus.devices] for process in processes] == [
        ["GPU-1-2"], ["GPU-1-0"], ["GPU-1-3"]
    ]  # fmt: skip
    assert all(gpu.health is None for process in processes for gpu in process.gpus.devices)


DENIED = Missing(reason="NVML error 4: Insufficient Permissions")


@pytest.mark.parametrize(
    ("own", "names"),
    [
        (([0], [1], [2], [3]), ["GPU-1-0", "GPU-1-1", "GPU-1-2", "GPU-1-3"]),
        (([0], [2]), ["GPU-1-0", "GPU-1-2", None, None]),  # the others are another job's
        (([0, 1], [1, 2, 3]), ["GPU-1-0", "GPU-1-1", "GPU-1-2", "GPU-1-3"]),
    ],
)
def test_gpus_that_nvml_counts_and_a_cgroup_hides_are_one_node_s(own, names):
    pairs = []
    for places, (node, process) in zip(own, views(*[range(4)] * len(own)), strict=True):
        hidden = dict.fromkeys(("uuid", "pci", "name", "memory_bytes", "memory_used_bytes", "mig"), DENIED)
        devices = tuple(gpu if gpu.index in places else replace(gpu, **hidden) for gpu in node.gpus.devices)
        pairs.append((replace(node, gpus=replace(node.gpus, devices=devices)), process))
    (node,) = combine(pairs)[0].values()
    assert [gpu.uuid if isinstance(gpu.uuid, str) else None for gpu in node.gpus.devices] == names
    assert [gpu.index for gpu in node.gpus.devices] == list(range(4))


def test_one_that_sees_all_beside_one_that_does_not():
    nodes, processes = combine(views(range(4), [1]))
    assert len(next(iter(nodes.values())).gpus.devices) == 4
    assert processes[0].gpus is None
    assert [gpu.index for gpu in processes[1].gpus.devices] == [0]


def verdict_on(pairs):
    """Return the errors, what was not checked, and the exit code of a job of these processes."""
    nodes, processes = combine(pairs)
    job = healthy_job(1, len(pairs), launcher="slurm", looks=("environment", "meeting", "gpu"), gpus=4)
    taken = [node.gpus.devices if isinstance(node.gpus, Gpus) else () for node, _ in pairs]
    ranks = tuple(
        replace(
            rank,
            visible_gpus=tuple(gpu.uuid for gpu in gpus) or Missing(reason=HUNG),
            gpu=gpus[place if len(gpus) == 4 else 0].uuid if gpus else None,
        )
        for place, (rank, gpus) in enumerate(zip(job.ranks, taken, strict=True))
    )
    job = replace(job, nodes=tuple(nodes.values()), processes=processes, ranks=ranks)
    said = diagnose(job, rules=[rule for rule in all_rules() if rule.family.startswith("gpu")])
    errors = [finding.rule for finding in said.findings if finding.severity == "error"]
    return errors, {missed.reason for missed in said.not_checked}, said.verdict.exit_code


ALL = range(4)


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(views(ALL, ALL, ALL, ALL, unread=(0,)), id="the first has read for all"),
        pytest.param(views(ALL, ALL, ALL, ALL, unread=(2,)), id="another has read for all"),
        pytest.param(views(ALL, ALL, missing=(1,)), id="the reader knows nothing at all"),
        pytest.param(views([0], [1], [2], health=(0, 2), unread=(1,)), id="each its own, one not read"),
        pytest.param(views([0], [1], [2], health=(0, 2), missing=(1,)), id="each its own, one not there"),
        pytest.param(views([0], [1], health=(0,), missing=(1,)), id="each its own, one of two not there"),
    ],
)
def test_unreadable_health_is_reported_for_any_reader(pairs):
    assert verdict_on(pairs) == (["gpu-nvml-init-failed"], {HUNG}, 20)


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(views(ALL, ALL, ALL, ALL, health=(0,)), id="one has read for all"),
        pytest.param(views([0], [1], [2], [3], health=range(4)), id="each its own"),
        pytest.param(views(ALL, ALL, ALL, ALL, health=(0,), unread=(2,)), id="one has, another need not"),
        pytest.param(views(ALL, [1], health=(0,)), id="one is kept to one that another has read"),
        pytest.param(views(ALL, ALL), id="nobody was asked to"),
    ],
)
def test_where_all_that_is_used_was_read_nothing_is_missing(pairs):
    assert verdict_on(pairs) == ([], set(), 0)


def test_a_used_gpu_without_health_is_reported():
    errors, missed, code = verdict_on(views([0], [1], [2], health=(0, 1)))
    assert (errors, missed, code) == ([], {"no process has read the condition of GPU 2 (0000:03:00.0)"}, 20)


def test_an_unused_gpu_without_health_does_not_matter():
    pairs = views([0], [1], [2, 3], health=(0, 1, 2))
    whole = pairs[2][0].gpus
    own = replace(whole, devices=(whole.devices[0], replace(whole.devices[1], health=None)))
    assert verdict_on([*pairs[:2], (replace(pairs[2][0], gpus=own), pairs[2][1])]) == ([], set(), 0)


def isolated_job(variable):
    """Four tasks that each see only their own GPU, which NVML numbers 0 there."""
    job = healthy_job(1, 4, launcher="slurm", looks=("environment", "meeting", "gpu"), gpus=4)
    whole = job.nodes[0].gpus
    pairs = []
    for place, process in enumerate(job.processes):
        own = replace(whole, devices=(replace(whole.devices[place], index=0),))
        pairs.append((replace(job.nodes[0], gpus=own), process))
    nodes, processes = combine(pairs)
    ranks = tuple(
        replace(
            rank,
            environment={name: text for name, text in rank.environment.items() if name != "LOCAL_RANK"}
            | {"CUDA_VISIBLE_DEVICES": variable},
            visible_gpus=(f"GPU-1-{place}",),
            gpu=f"GPU-1-{place}",
        )
        for place, rank in enumerate(job.ranks)
    )
    return replace(job, nodes=tuple(nodes.values()), processes=processes, ranks=ranks)


def said(job):
    return {f.rule for f in diagnose(job).findings if f.severity != "info" and f.rule.startswith("gpu")}


def test_an_index_is_read_in_the_view_of_its_own_process():
    assert said(isolated_job("0")) == set()
    assert said(isolated_job("1")) == {"gpu-cvd-bad-item"}
