"""The rules about each device's own speed and results, on figures of GPUs of several models and of CPUs."""

import math
import random

import pytest
from made.policies import policy
from msgspec.structs import replace

from distcheck.expectation.devices import CARD_MATMUL_SHARE, HOST_SHARE, MATMUL_SHARE, MEMORY_SHARE, floor_of, peak_of
from distcheck.facts.base import Missing
from distcheck.facts.device import Burn, DeviceTest
from distcheck.facts.gpu import Amd, GpuHealth
from distcheck.facts.host import CpuQuota, Limits
from distcheck.facts.rank import RankRun
from distcheck.rules.gpu.own_work import SLOW_CPU

H100 = "NVIDIA H100 80GB HBM3"
HEALTHY = {
    H100: (720.0, 2900.0, 55.0),
    "NVIDIA H100 PCIe": (430.0, 1700.0, 25.0),  # in a PCIe 4.0 slot
    "NVIDIA H200": (770.0, 4200.0, 55.0),
    "NVIDIA B200": (1550.0, 6800.0, 55.0),
    "NVIDIA A100-SXM4-40GB": (260.0, 1350.0, 25.0),
    "NVIDIA A100 80GB PCIe": (220.0, 1700.0, 24.0),
    "NVIDIA A10G": (60.0, 480.0, 12.0),
    "NVIDIA L4": (48.0, 240.0, 12.0),
    "NVIDIA L40S": (210.0, 700.0, 25.0),
    "Tesla V100-SXM2-32GB": (95.0, 790.0, 12.0),
    "Tesla T4": (24.0, 240.0, 12.0),
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": (35.0, 160.0, 25.0),
    "AMD Instinct MI300X": (600.0, 4000.0, 50.0),
}
"""What a healthy GPU reaches: TFLOPS, GB/s of its memory, GB/s from and to the host."""
CPU = DeviceTest("float32", 256, 0.09, 14.0, products=100, checksum=5)
SPEED, PRODUCTS = "gpu.speed", "gpu.products"


def ran(test, device="cpu", gpu=None):
    return RankRun(pid=1, step="done", outcome="done", device=device, gpu=gpu, device_test=test)


def of_gpu(model, *shares):
    """Return a healthy test of a model; `shares` scale products, memory, and copies from and to the host."""
    matmul, memory, host = HEALTHY[model]
    a, b, c, d = (*shares, 1.0, 1.0, 1.0, 1.0)[:4]
    rounds = {"matmul_least_TFLOPS": 0.98 * a * matmul, "memory_least_GBps": 0.98 * b * memory}
    return DeviceTest("bfloat16", 8192, a * matmul, b * memory, c * host, d * host, products=60, checksum=9, **rounds)


@pytest.fixture
def job(job_of, change):
    """Return a function that makes a job of two nodes with these tests; all others are healthy."""

    def made(healthy, odd=(), device="cpu", per_node=4, **asked):
        gpus = per_node if device != "cpu" else 0
        job = job_of(2, per_node, looks=("environment", "meeting", "collectives"), gpus=gpus, **asked)
        for number, rank in enumerate(job.ranks):
            test = dict(odd).get(number, healthy)
            job = change.rank(job, number, run=ran(test, device, rank.gpu))
        return job

    return made


@pytest.mark.parametrize("model", HEALTHY)
@pytest.mark.parametrize("per_node", [1, 4])
def test_healthy_gpus_of_every_model_are_silent(job, judge, model, per_node):
    odd = {1: of_gpu(model, 0.9, 0.95, 0.8, 0.8)}
    said = judge(job(of_gpu(model), odd, model, per_node), SPEED, PRODUCTS)
    assert not said.findings
    assert not said.not_checked


@pytest.mark.parametrize("model", [m for m in HEALTHY if "MIG" not in m])
@pytest.mark.parametrize(
    ("kind", "rule", "words", "code"),
    [
        (0, "gpu-slow-compute", "multiplies matrices at", 40),
        (1, "gpu-slow-memory", "copies within its memory at", 40),
        (2, "gpu-slow-host-copy", "copies from its host at", 20),
        (3, "gpu-slow-host-copy", "copies to its host at", 20),
    ],
)
def test_a_gpu_at_a_third_of_its_speed_is_named_with_both_numbers(job, judge, model, kind, rule, words, code):
    shares = [1.0] * 4
    shares[kind] = 1 / 3
    said = judge(job(of_gpu(model), {6: of_gpu(model, *shares)}, model), SPEED, PRODUCTS)
    (finding,) = said.findings
    assert (finding.rule, finding.ranks, finding.nodes, finding.scope) == (rule, (6,), ("node2",), "gpu")
    assert said.verdict.exit_code == code
    value = HEALTHY[model][min(kind, 2)]
    assert f"the GPU of rank 6 (node2, {model}) {words}" in finding.message
    shown = [float(word) for word in finding.message.split() if word.replace(".", "").isdigit()]
    assert any(abs(number - value / 3) <= 0.01 * value for number in shown), finding.message
    assert any(abs(number - value) <= 0.01 * value for number in shown), finding.message
    assert finding.evidence["gpu"] == "GPU-2-2"


def spread(rng, model=H100, share=1.0, sigma=0.05):
    """Return a test of a GPU that differs from others by chance."""
    return of_gpu(model, *(share * math.exp(rng.gauss(0, sigma)) for _ in range(2)))


@pytest.mark.parametrize("world", [2, 4, 8, 64])
@pytest.mark.parametrize("sigma", [0.03, 0.05])
def test_gpus_that_differ_by_some_per_cent_are_silent(job, judge, world, sigma):
    chance = random.Random(world)
    for _ in range(25):
        odd = {number: spread(chance, sigma=sigma) for number in range(world)}
        assert not judge(job(of_gpu(H100), odd, H100, world // 2), SPEED).findings


@pytest.mark.parametrize(
    ("world", "share", "says"),
    [
        (2, 0.72, ["warning"]),
        (4, 0.72, ["warning"]),
        (8, 0.72, ["warning"]),
        (64, 0.72, ["warning"]),
        (8, 0.84, []),  # so few show too little of their spread
        (64, 0.84, ["warning"]),
        (8, 0.6, ["error"]),
        (64, 0.6, ["error"]),
    ],
)
def test_a_gpu_beyond_the_spread_of_the_others_is_a_warning_and_far_beyond_an_error(job, judge, world, share, says):
    chance = random.Random(1)
    odd = {number: spread(chance, sigma=0.02) for number in range(world)} | {1: of_gpu(H100, share)}
    found = judge(job(of_gpu(H100), odd, H100, world // 2), SPEED).findings
    assert [(f.rule, f.severity, f.ranks) for f in found] == [("gpu-slow-compute", each, (1,)) for each in says]


def test_without_a_second_look_a_gpu_far_beyond_the_others_is_a_warning(job, judge):
    once = replace(of_gpu(H100, 0.6), matmul_least_TFLOPS=None)
    (finding,) = judge(job(of_gpu(H100), {3: once}, H100), SPEED).findings
    assert (finding.severity, finding.confirmed, finding.ranks) == ("warning", False, (3,))


@pytest.mark.parametrize("sigma", [0.03, 0.05])
def test_the_few_slow_gpus_of_a_large_job_are_one_warning_with_their_ranks(job, judge, sigma):
    chance = random.Random(7)
    slow = sorted(chance.sample(range(1024), 3))
    odd = {n: spread(chance, share=0.72 if n in slow else 1, sigma=0 if n in slow else sigma) for n in range(1024)}
    for number in slow:
        odd[number] = of_gpu(H100, 0.72)
    (finding,) = judge(job(of_gpu(H100), odd, H100, 512), SPEED).findings
    assert (finding.severity, finding.ranks) == ("warning", tuple(slow))
    assert finding.message.startswith(f"3 of 1024 GPUs ({H100}) are slow: the GPU of rank {slow[0]} ")
    assert f"rank {slow[2]}" in finding.evidence
    assert finding.evidence[f"rank {slow[0]}"].startswith("508 to 518 TFLOPS, 7")


def test_a_gpu_alone_is_judged_by_its_models_floor(job_of, change, judge):
    job = job_of(1, 1, looks=("collectives",), gpus=1)
    for share, named in ((1.0, False), (0.6, False), (0.33, True)):
        said = judge(change.rank(job, 0, run=ran(of_gpu(H100, share), H100)), SPEED)
        assert [(f.rule, f.severity, f.confirmed) for f in said.findings] == [
            ("gpu-slow-compute", "error", False)
        ] * named, share
    assert "this model reaches at least 396 TFLOPS" in said.findings[0].message
    unknown = judge(change.rank(job, 0, run=ran(of_gpu(H100, 0.01), "NVIDIA X1")), SPEED)
    assert not unknown.findings, "there is nothing to compare with"


def test_a_whole_model_below_its_floor_is_one_warning_that_blames_no_gpu(job, judge):
    said = judge(job(of_gpu(H100, 0.5), {}, H100), SPEED)
    (finding,) = said.findings
    assert (finding.rule, finding.severity, finding.scope) == ("gpu-slow-compute", "warning", "job")
    assert finding.ranks == tuple(range(8))
    assert said.verdict.exit_code == 0


def test_of_two_unlike_gpus_of_an_unknown_model_the_slow_one_is_only_suspected(job, judge):
    said = judge(job(of_gpu("AMD Instinct MI300X"), {1: of_gpu("AMD Instinct MI300X", 0.3)}, "AMD", 1), SPEED)
    assert [(f.ranks, f.severity) for f in said.findings] == [((1,), "warning")]


@pytest.mark.parametrize(("mode", "slow"), [("SPX", True), ("CPX", False)])
def test_a_partition_has_its_cards_name_and_not_its_floor(job, change, judge, mode, slow):
    model = "AMD Instinct MI300X"
    parts = job(of_gpu(model, 0.125, 0.125), (), model)
    for n in range(2):
        own = parts.nodes[n].gpus
        devices = tuple(replace(g, health=GpuHealth(amd=Amd(compute_partition=mode))) for g in own.devices)
        parts = change.node(parts, n, gpus=replace(own, devices=devices))
    assert bool(judge(parts, SPEED).findings) is slow


def test_gpus_that_ranks_share_are_not_judged(job, change, judge):
    shared = job(of_gpu(H100), {2: of_gpu(H100, 0.1), 3: of_gpu(H100, 0.1)}, H100)
    assert [f.ranks for f in judge(shared, SPEED).findings] == [(2,), (3,)]
    run = replace(shared.ranks[2].run, gpu="GPU-1-3")
    assert not judge(change.rank(shared, 2, run=run), SPEED).findings


def test_gpus_of_another_model_are_no_measure(job, change, judge):
    mixed = job(of_gpu(H100), {}, H100)
    mixed = change.rank(mixed, [4, 5, 6, 7], run=ran(of_gpu("NVIDIA L4"), "NVIDIA L4"))
    assert not judge(mixed, SPEED).findings


def test_a_slow_cpu_is_a_warning_at_its_rank(job, judge):
    slow = replace(CPU, matmul_TFLOPS=0.009, memory_GBps=1.25)
    said = judge(job(CPU, {3: slow}), SPEED)
    (finding,) = said.findings
    assert (finding.rule, finding.ranks, finding.nodes) == ("perf-slow-rank", (3,), ("node1",))
    assert (finding.severity, said.verdict.exit_code) == ("warning", 0)
    assert "multiplies matrices at 9 GFLOPS; the 7 others like it reach 90 GFLOPS (median)" in finding.message
    assert "copies memory at 1.25 GB/s" in finding.message


@pytest.mark.parametrize(("limit", "blamed"), [(0.5, False), (4.0, True), (None, True)])
def test_of_ranks_that_share_a_small_cpu_limit_none_is_blamed(job, change, judge, limit, blamed):
    slow = replace(CPU, matmul_TFLOPS=0.009, memory_GBps=1.25)
    quota = CpuQuota(limit, 1000, 100, "/sys/fs/cgroup/job") if limit else None
    limited = change.process(job(CPU, {1: slow}), (0, 1, 2, 3), limits=Limits(cpu=quota))
    found = {f.rule: f.ranks for f in judge(limited, SPEED, "host.cpus").findings}
    assert found == ({"perf-slow-rank": (1,)} if blamed else {"perf-cgroup-cpu-quota": (0, 1, 2, 3)})


@pytest.mark.parametrize(
    ("matmul", "memory", "per_node", "named"),
    [
        (SLOW_CPU + 0.01, SLOW_CPU + 0.01, 4, False),
        (0.5, 0.5, 4, False),
        (3.0, 3.0, 4, False),
        (0.05, 1.0, 4, False),  # in one kind of work only
        (1.0, 0.05, 4, False),
        (SLOW_CPU + 0.01, SLOW_CPU + 0.01, 1, False),
        (SLOW_CPU - 0.01, SLOW_CPU - 0.01, 1, True),
    ],
)
def test_only_a_cpu_that_is_much_slower_in_all_its_work_is_named(job, judge, matmul, memory, per_node, named):
    rates = {"matmul_TFLOPS": matmul * CPU.matmul_TFLOPS, "memory_GBps": memory * CPU.memory_GBps}
    odd = replace(CPU, **rates)
    assert [f.ranks for f in judge(job(CPU, {1: odd}, per_node=per_node), SPEED).findings] == [(1,)] * named


def test_a_test_that_was_not_made_is_listed_and_fails_nothing(job, judge):
    said = judge(job(CPU, {2: Missing(reason="less than 8 s of the time limit were left")}), SPEED, PRODUCTS)
    assert [(n.rule, n.ranks, n.required) for n in said.not_checked] == [("perf-slow-rank", (2,), False)]
    said = judge(job(of_gpu(H100), {2: Missing(reason="too little free GPU memory")}, H100), SPEED, PRODUCTS)
    assert [(n.rule, n.ranks, n.required) for n in said.not_checked] == [("gpu-slow-compute", (2,), False)]


@pytest.mark.parametrize(("healthy", "device"), [(CPU, "cpu"), (of_gpu(H100), H100)])
def test_a_device_whose_own_products_differ_is_confirmed_bad(job, judge, healthy, device):
    said = judge(job(healthy, {5: replace(healthy, different=2)}, device), PRODUCTS)
    (finding,) = said.findings
    assert (finding.rule, finding.ranks, finding.nodes, finding.confirmed) == (
        "gpu-wrong-product", (5,), ("node2",), True,
    )  # fmt: skip
    assert f"2 of {healthy.products} equal products of rank 5 (node2, {device})" in finding.message
    assert said.verdict.exit_code == 40


def test_a_device_that_disagrees_with_most_is_confirmed_bad(job, judge):
    said = judge(job(CPU, {2: replace(CPU, checksum=6)}), PRODUCTS)
    assert [(f.rule, f.ranks, f.confirmed) for f in said.findings] == [("gpu-wrong-product", (2,), True)]
    assert "another result than on 7 of 8 ranks" in said.findings[0].message


def test_one_result_against_another_blames_neither(job, judge):
    said = judge(job(CPU, {1: replace(CPU, checksum=6)}, per_node=1), PRODUCTS)
    assert [(f.ranks, f.confirmed) for f in said.findings] == [((0, 1), False)]
    assert said.verdict.exit_code == 20


def test_devices_of_different_models_may_have_different_results(job, change, judge):
    mixed = job(of_gpu(H100), {}, H100)
    run = replace(mixed.ranks[0].run, device="NVIDIA L4", device_test=replace(of_gpu("NVIDIA L4"), checksum=77))
    assert not judge(change.rank(mixed, [4, 5, 6, 7], run=run), PRODUCTS).findings


def test_cpus_may_slow_down_during_the_burn_which_is_required(job, judge):
    said = judge(job(replace(CPU, burn=Burn(60.0, 0.09, 0.02)), {}, burn_seconds=60.0), PRODUCTS)
    assert said[:2] == ((), ())
    said = judge(job(CPU, {}, burn_seconds=2.0), PRODUCTS)
    assert [(n.rule, n.required, n.ranks) for n in said.not_checked] == [("gpu-wrong-product", True, tuple(range(8)))]
    assert said.verdict.exit_code == 20


@pytest.mark.parametrize(
    ("name", "matmul", "memory", "host"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 3350, 63),
        ("NVIDIA H100 PCIe", 756, 2000, 63),
        ("NVIDIA H100 NVL", 835, 3900, 63),
        ("NVIDIA H200", 989, 4800, 63),
        ("NVIDIA GH200 480GB", 990, 4000, 450),
        ("NVIDIA GB200", 2500, 8000, 225),
        ("NVIDIA A100-SXM4-80GB", 312, 1935, 31.5),
        ("NVIDIA A10", 125, 600, 31.5),
        ("NVIDIA L40S", 362, 864, 31.5),
        ("NVIDIA L40", 181, 864, 31.5),
        ("Tesla V100-PCIE-16GB", 112, 900, 15.75),
        ("NVIDIA A10G", None, None, None),
        ("NVIDIA GeForce RTX 4090", None, None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None, None),
    ],
)
def test_models_are_told_by_the_names_that_the_driver_reports(name, matmul, memory, host):
    peak, floor = peak_of(name), floor_of(name)
    if matmul is None:
        assert peak is floor is None
        return
    assert (peak.matmul_TFLOPS, peak.memory_GBps, peak.host_GBps) == (matmul, memory, host)
    assert floor.matmul_TFLOPS / matmul in {MATMUL_SHARE, CARD_MATMUL_SHARE}
    assert (floor.memory_GBps, floor.host_GBps) == (MEMORY_SHARE * memory, HOST_SHARE * host)


@pytest.mark.parametrize(("floor", "rules"), [(600.0, []), (700.0, ["gpu-slow-compute"])])
def test_the_floor_of_the_site_s_policy_replaces_that_of_the_data_sheet(job, judge, change, floor, rules):
    site = policy({"device": {"NVIDIA H100*": {"matmul-TFLOPS": floor}}})
    said = judge(change.asked(job(of_gpu(H100), {6: of_gpu(H100, 0.95)}, H100), policy=site), SPEED, PRODUCTS)
    assert [f.rule for f in said.findings] == rules
    assert all((f.ranks, f.severity) == ((6,), "error") for f in said.findings)
