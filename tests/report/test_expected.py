"""Expected bandwidth and its source, in every format."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.expectation.baseline import of
from distcheck.facts.gpu import GpuHealth, NvLinks
from distcheck.facts.job import Collectives, Measurement
from distcheck.report import render
from distcheck.report.document import document

replace = msgspec.structs.replace
MIB = 1 << 20
LINKS = NvLinks(active=(True,) * 18, remote=("switch",) * 18, version=6)


@pytest.fixture
def h200(job_of, judge):
    """Judge a node of 8 H200 with known links and these broadcasts, in GB/s by MiB."""

    def build(figures=None, **asked):
        job = job_of(1, 8)
        node = job.nodes[0]
        devices = tuple(replace(gpu, health=GpuHealth(nvlinks=LINKS)) for gpu in node.gpus.devices)
        rows = tuple(
            Measurement("broadcast", size * MIB, "float32", 9, (size * MIB / busbw / 1e9,) * 8)
            for size, busbw in (figures or {1: 20.0, 256: 320.0, 8192: 360.0}).items()
        )
        return judge(
            replace(
                job,
                nodes=(replace(node, gpus=replace(node.gpus, devices=devices)),),
                collectives=Collectives("nccl", measurements=rows),
                asked=replace(job.asked, **asked),
            )
        )

    return build


def rows(judged):
    return {row.bytes // MIB: row for row in document(*judged).bandwidth}


def test_a_row_has_the_usual_bandwidth_of_its_size(h200):
    found = rows(h200())
    assert found[8192].expected_GBps.value == pytest.approx(361.5, abs=3)
    assert found[8192].share_of_expected == pytest.approx(1.0, abs=0.01)
    assert 290 < found[256].expected_GBps.value < 330
    assert found[1].expected_GBps.value is None
    assert found[1].share_of_expected is None
    assert found[1].expected_GBps.source.startswith("18 NVLinks x 20.6 GB/s (NCCL's figure for Hopper) = 370.8 GB/s")


@pytest.mark.parametrize("name", ["text", "markdown", "html"])
def test_the_table_shows_expectations_and_names_the_source_once(h200, name):
    text = " ".join(render(name, *h200()).replace("\\", "").replace("&#39;", "'").split())
    assert "expected" in text
    assert "share" in text
    assert "100%" in text
    assert text.count("expected for broadcast: 18 NVLinks x 20.6 GB/s (NCCL's figure for Hopper)") == 1
    assert "; smaller sizes: the usual share of it" in text


@pytest.mark.parametrize("name", ["text", "markdown", "html"])
def test_without_expectations_no_source_is_shown(healthy, name):
    assert "expected for" not in render(name, *healthy)


def test_min_busbw_overrides_the_hardware_figure(h200):
    found = rows(h200(min_busbw_GBps=300.0))
    assert {(row.expected_GBps.value, row.expected_GBps.source) for row in found.values()} == {(300.0, "--min-busbw")}


def test_an_impossible_min_busbw_is_not_an_expectation(h200):
    assert rows(h200(min_busbw_GBps=900.0))[8192].expected_GBps.value < 370


def test_a_baseline_is_the_expectation_of_each_size(h200):
    before = of(h200({1: 25.0, 8192: 365.0}).job, "before.json")
    found = rows(h200(baseline=before))
    assert found[1].expected_GBps.value == pytest.approx(25.0)
    assert found[8192].expected_GBps.value == pytest.approx(365.0)
    assert found[256].expected_GBps.value is None
    assert {row.expected_GBps.source for row in found.values()} == {"before.json"}
    text = " ".join(render("text", *h200(baseline=before)).split())
    assert "expected for broadcast: before.json; each size as in that run" in text
    assert "usual share" not in text


def test_a_baseline_of_other_hardware_is_not_used(h200, job_of):
    before = replace(of(h200().job, "before.json"), gpus={"NVIDIA A100": 8})
    assert "NVLinks" in rows(h200(baseline=before))[8192].expected_GBps.source
