"""The rules about the results of repeated products."""

import msgspec
import pytest
from rules.gpu.test_speed import CPU, H100, PRODUCTS, job, of_gpu  # noqa: F401 fixture

from distcheck.facts.device import Burn

replace = msgspec.structs.replace


@pytest.mark.parametrize(("healthy", "device"), [(CPU, "cpu"), (of_gpu(H100), H100)])
def test_a_device_whose_own_products_differ_is_confirmed_bad(job, judge, healthy, device):  # noqa: F811
    said = judge(job(healthy, {5: replace(healthy, different=2)}, device), PRODUCTS)
    (finding,) = said.findings
    assert (finding.rule, finding.ranks, finding.nodes, finding.confirmed) == (
        "gpu-wrong-product", (5,), ("node2",), True,
    )  # fmt: skip
    assert f"2 of {healthy.products} equal products of rank 5 (node2, {device})" in finding.message
    assert said.verdict.exit_code == 40


def test_a_device_that_disagrees_with_most_is_confirmed_bad(job, judge):  # noqa: F811
    said = judge(job(CPU, {2: replace(CPU, checksum=6)}), PRODUCTS)
    assert [(f.rule, f.ranks, f.confirmed) for f in said.findings] == [("gpu-wrong-product", (2,), True)]
    assert "another result than on 7 of 8 ranks" in said.findings[0].message


def test_one_result_against_another_blames_neither(job, judge):  # noqa: F811
    said = judge(job(CPU, {1: replace(CPU, checksum=6)}, per_node=1), PRODUCTS)
    assert [(f.ranks, f.confirmed) for f in said.findings] == [((0, 1), False)]
    assert said.verdict.exit_code == 20


def test_devices_of_different_models_may_have_different_results(job, change, judge):  # noqa: F811
    mixed = job(of_gpu(H100), {}, H100)
    run = replace(mixed.ranks[0].run, device="NVIDIA L4", device_test=replace(of_gpu("NVIDIA L4"), checksum=77))
    assert not judge(change.rank(mixed, [4, 5, 6, 7], run=run), PRODUCTS).findings


def test_a_gpu_that_slows_down_during_the_burn_is_named(job, judge):  # noqa: F811
    healthy = replace(of_gpu(H100), burn=Burn(60.0, 720.0, 690.0))
    slowing = replace(of_gpu(H100), burn=Burn(60.0, 720.0, 500.0))
    assert not judge(job(healthy, {}, H100, burn_seconds=60.0), PRODUCTS).findings
    said = judge(job(healthy, {3: slowing}, H100, burn_seconds=60.0), PRODUCTS)
    assert [(f.rule, f.ranks, f.severity) for f in said.findings] == [("gpu-burn-slows", (3,), "warning")]
    assert "from 720 to 500 TFLOPS within 60 s" in said.findings[0].message


def test_cpus_may_slow_down_during_the_burn_which_is_required(job, judge):  # noqa: F811
    said = judge(job(replace(CPU, burn=Burn(60.0, 0.09, 0.02)), {}, burn_seconds=60.0), PRODUCTS)
    assert said[:2] == ((), ())
    said = judge(job(CPU, {}, burn_seconds=2.0), PRODUCTS)
    assert [(n.rule, n.required, n.ranks) for n in said.not_checked] == [("gpu-wrong-product", True, tuple(range(8)))]
    assert said.verdict.exit_code == 20
