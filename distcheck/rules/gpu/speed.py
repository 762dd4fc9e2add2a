"""Rules about the speed of each device by itself: products, memory, copies from and to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from distcheck.expectation.devices import SLOW, Floor
from distcheck.facts.job import Job
from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.gpu.own_work import SLOW_HOST_COPY, Figure, SlowDevice, slow_cpus, slow_gpus, untested
from distcheck.rules.wording import found, listed, nodes_of, numbers_of, rank_name

if TYPE_CHECKING:
    from distcheck.facts.rank import RankFacts

_MOST = 8
"""Slow GPUs in the evidence."""


class _Work(NamedTuple):
    """A kind of work of the device test."""

    words: str
    unit: str
    figure: Figure
    floor: Callable[[Floor], float] = lambda floor: floor.host_GBps
    share: float = SLOW_HOST_COPY


_PRODUCTS = _Work(
    "multiplies matrices at",
    "TFLOPS",
    lambda test: (test.matmul_TFLOPS, test.matmul_least_TFLOPS),
    lambda floor: floor.matmul_TFLOPS,
    SLOW,
)
_MEMORY = _Work(
    "copies within its memory at",
    "GB/s",
    lambda test: (test.memory_GBps, test.memory_least_GBps),
    lambda floor: floor.memory_GBps,
    SLOW,
)
_FROM_HOST = _Work("copies from its host at", "GB/s", lambda test: (test.h2d_GBps, None))
_TO_HOST = _Work("copies to its host at", "GB/s", lambda test: (test.d2h_GBps, None))
_OF_CPUS = (
    _Work("multiplies matrices at", "GFLOPS", lambda test: (1e3 * test.matmul_TFLOPS, None)),
    _Work("copies memory at", "GB/s", lambda test: (test.memory_GBps, None)),
)


@rule("collectives", scope=("gpu", "job"), owner="admin")
def gpu_slow_compute(job: Job) -> Iterator[Outcome]:
    """A GPU multiplies matrices far more slowly than others of its model, or than the model must.

    Every step of the job waits for its slowest GPU, so one GPU at a third of its speed makes the job three times as
    slow, without an error anywhere. Heat, a power limit, locked clocks, another process or broken hardware are causes.

    Found by timing products of large bfloat16 matrices (float16 on GPUs older than Ampere) on all GPUs at the same
    time, after the collectives, in three rounds of which the best counts. Good GPUs of a model differ by 3 to 5 %. A
    GPU is a warning below 0.9 of the median of the job's other GPUs of its model, and by more than they differ from
    each other: noise shows such a GPU in one healthy job of 10,000. It is an error below 0.7, if all rounds agree, or
    below the model's floor: 0.4 of the dense peak in NVIDIA's data sheet, 0.2 for cards of at most 300 W. If the others
    of the model are below the floor as well, that is one warning, and no GPU is blamed. Models without a floor and MIG
    parts are only compared with each other, and GPUs that several ranks share are not judged.

    Fix: Check the GPU's clocks, power limit, temperature and other processes; reset it or exclude the node.

        nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE
        nvidia-smi

    See: https://docs.nvidia.com/deploy/nvml-api/
    """
    yield from untested(job, gpus=True)
    yield from _of_gpus(job, _PRODUCTS)


@rule("collectives", scope=("gpu", "job"), owner="admin")
def gpu_slow_memory(job: Job) -> Iterator[Outcome]:
    """A GPU's memory is far slower than that of others of its model, or than the model's must be.

    Attention, normalisation and optimizer steps are limited by it, and every step of the job waits for its slowest GPU.

    Found by timing copies within the memory of all GPUs at the same time, after the collectives, and judged as products
    are (gpu-slow-compute): a warning below 0.9 of the median of the job's other GPUs of its model and beyond their
    spread, an error below 0.7 or below half of the rate in the model's data sheet. If the others of the model are below
    that as well, that is one warning, and no GPU is blamed.

    Fix: Check the GPU's memory errors, memory clock and other processes; reset it or exclude the node.

        nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK,PERFORMANCE
        nvidia-smi

    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    yield from _of_gpus(job, _MEMORY)


@rule("collectives", scope=("gpu", "job"), owner="admin")
def gpu_slow_host_copy(job: Job) -> Iterator[Outcome]:
    """Copies between a GPU and its host's memory are far slower than those of the other GPUs.

    Every batch of data takes this way, and so do checkpoints and offloaded optimizer states. Causes are a PCIe link
    that trained to fewer lanes or a lower generation, a bad riser or slot, and memory of a far NUMA node.

    Found by timing copies in both directions from pinned memory of the GPU's own NUMA node, one GPU of a node after
    the other. A GPU is slow below half of the median of the job's other GPUs of its model and beyond their spread, or
    below 0.2 of the rate of the model's host link (PCIe or NVLink-C2C). A suspicion: the node's board or virtual
    machine can be the cause.

    Fix: Compare the PCIe link's width and generation under load with the maximum; reseat or replace the card, or
    exclude the node.

        nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current --format=csv

    See: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#data-transfer-between-host-and-device
    """
    yield from _of_gpus(job, _FROM_HOST)
    yield from _of_gpus(job, _TO_HOST)


@rule("collectives", severity="warning", scope="rank", unless=("perf-cgroup-cpu-quota",), owner="unknown")
def perf_slow_rank(job: Job) -> Iterator[Outcome]:
    """A rank's CPU does the same work far more slowly than those of the other ranks.

    The slowest rank sets the pace of all others, which wait for it in every collective. A CPU limit of its cgroup, or
    cores of another kind or at lower clocks, are common causes.

    Found by timing a matrix product and memory copies on every rank after the collectives. Waiting for a CPU that
    other processes use does not count; throttling by a CPU limit does. Healthy CPUs differ much, so a rank is slow only
    below 0.2 of the median of the other ranks, in products and in copies, and by more than the others differ from each
    other. Of ranks that share a CPU limit which is too small, chance decides which is slow: the limit is reported, and
    none of them. With NCCL the GPUs are tested instead.

    Fix: Look for a CPU limit of the rank's cgroup, and at the clocks of the CPUs on which it may run.

        cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup | tail -n1)/cpu.max
        lscpu --extended
    """
    yield from untested(job, gpus=False)
    slow: dict[int, list[tuple[RankFacts, str]]] = {}
    for work in _OF_CPUS:
        for one in slow_cpus(job, work.figure):
            slow.setdefault(id(one.tested.rank), []).append((one.tested.rank, _speed(one, work)))
    for parts in slow.values():
        if len(parts) == len(_OF_CPUS):  # a limit slows both; a disturbance of a busy machine seldom does
            rank = parts[0][0]
            words = f"{rank_name(job, rank)} ({listed(nodes_of(job, [rank]))}) {listed([words for _, words in parts])}"
            yield found(job, [rank], words, confirmed=False, evidence={"cpus": rank.cpu_list} if rank.cpu_list else {})


def _of_gpus(job: Job, work: _Work) -> Iterator[Fault]:
    """Yield a finding for each GPU that is far too slow, and one for each model with slow ones, or with slow ones only.

    Two or more faster GPUs of the model confirm that one is at fault, but not for copies, which the host makes as well.
    """
    all_slow: dict[str, list[SlowDevice]] = {}
    slow: dict[str, list[SlowDevice]] = {}
    for one in slow_gpus(job, work.figure, work.floor, work.share):
        model, alone = one.tested.device, one.usual is not None and one.others == 1 and one.floor is None
        if one.all_slow:
            all_slow.setdefault(model, []).append(one)
        elif alone or not one.severe:
            slow.setdefault(model, []).append(one)
        else:
            confirmed, evidence = work.share == SLOW and one.others > 1, _evidence(one, work)
            yield found(job, [one.tested.rank], _slow(job, one, work), confirmed=confirmed, evidence=evidence)
    for model, alike in slow.items():
        yield _slow_ones(job, model, alike, work)
    for model, alike in all_slow.items():
        yield _whole_model(job, model, alike, work)


def _slow_ones(job: Job, model: str, slow: list[SlowDevice], work: _Work) -> Fault:
    """Return the warning about a model's slow GPUs, the slowest first."""
    first, *others = slow = sorted(slow, key=lambda one: one.value)
    count = f"{len(slow)} of {first.others + 1} GPUs ({model}) are slow: " if others else ""
    shares = {}
    for one in slow[:_MOST]:
        least = work.figure(one.tested.test)[1]
        rates = f"{'' if least is None else f'{_amount(least)} to '}{_amount(one.value)} {work.unit}"
        shares[rank_name(job, one.tested.rank)] = f"{rates}, {one.value / (one.usual or one.value):.0%} of the others"
    return found(
        job,
        [one.tested.rank for one in slow],
        f"{count}{_slow(job, first, work)}",
        severity="warning",
        confirmed=False,
        evidence=shares if others else _evidence(first, work),
    )


def _whole_model(job: Job, model: str, alike: list[SlowDevice], work: _Work) -> Fault:
    values, ranks = [one.value for one in alike], [one.tested.rank for one in alike]
    return found(
        job,
        ranks,
        f"{numbered(numbers_of(ranks))}: every {model} {work.words} at most {_amount(max(values))} {work.unit}; "
        f"this model reaches at least {_amount(alike[0].floor or 0)} {work.unit}",
        severity="warning",
        scope="job",
        confirmed=False,
        evidence={"lowest": f"{_amount(min(values))} {work.unit}", "highest": f"{_amount(max(values))} {work.unit}"},
    )


def _slow(job: Job, one: SlowDevice, work: _Work) -> str:
    """Return which GPU is how slow: the GPU of rank 6 (node2, NVIDIA H100) copies at 5 GB/s; ..."""
    rank = one.tested.rank
    return (
        f"the GPU of {rank_name(job, rank)} ({listed(nodes_of(job, [rank]))}, {one.tested.device}) {_speed(one, work)}"
    )


def _speed(one: SlowDevice, work: _Work) -> str:
    """Return how slow a device is, and what others and its model reach."""
    parts = []
    if one.usual is not None:
        others = "the other one reaches" if one.others == 1 else f"the {one.others} others like it reach"
        parts.append(f"{others} {_amount(one.usual)} {work.unit}{' (median)' if one.others > 1 else ''}")
    if one.floor is not None:
        parts.append(f"this model reaches at least {_amount(one.floor)} {work.unit}")
    return f"{work.words} {_amount(one.value)} {work.unit}{f'; {listed(parts)}' if parts else ''}"


def _evidence(one: SlowDevice, work: _Work) -> dict[str, Any]:
    known = {
        "gpu": one.tested.rank.run and one.tested.rank.run.gpu,
        "share of the others": f"{one.value / one.usual:.0%}" if one.usual else None,
        "dtype": one.tested.test.dtype if work == _PRODUCTS else None,
    }
    return {name: value for name, value in known.items() if value}


def _amount(value: float) -> str:
    """Return three significant digits: 0.0912, 9.12, 912, 3350."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
