"""The model against published results, and the table itself."""

import re
import runpy
from pathlib import Path

import pytest

from distcheck.expectation.ladder import expect

REFERENCES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "published_bandwidth.py"))["REFERENCES"]

MEASURED = [row for row in REFERENCES if row.kind == "measured" and not row.unlike]
GATES = [row for row in REFERENCES if row.kind == "gate" and not row.unlike]
UNLIKE = [row for row in REFERENCES if row.unlike]
BANDS = {"A100 PCIe", "RTX 5090"}
"""GPUs in PCIe slots, for which only a band is expected."""


def name_of(row):
    return f"{row.system} {row.op} {row.bytes}"


def expected(row):
    return expect(row.op, row.hardware, ranks=row.ranks, algorithm=row.algorithm)


def test_the_model_reproduces_every_published_figure():
    for row in MEASURED:
        usual, middle = expected(row), (row.low_GBps + row.high_GBps) / 2
        share = 1.0 if row.bytes is None else usual.share(row.bytes)
        if share is None:
            # Latency dominates there, so the size is not judged.
            assert middle < 0.67 * usual.value_GBps, name_of(row)
        elif row.gpu in BANDS:
            assert usual.low_GBps <= row.low_GBps <= row.high_GBps <= usual.most_GBps, name_of(row)
        else:
            assert usual.value_GBps * share == pytest.approx(middle, rel=row.tolerance), name_of(row)


@pytest.mark.parametrize("row", GATES, ids=name_of)
def test_the_usual_figure_passes_operator_gates_and_is_not_far_above(row):
    usual = expected(row)
    assert row.low_GBps <= usual.most_GBps
    assert usual.low_GBps <= row.low_GBps / 0.8


def test_no_published_figure_is_impossible():
    assert [name_of(row) for row in MEASURED + GATES if row.high_GBps > expected(row).high_GBps] == []


@pytest.mark.parametrize("row", [row for row in UNLIKE if row.hardware], ids=name_of)
def test_exceptions_to_the_model_have_a_reason_and_cause_no_false_alarm(row):
    usual = expected(row)
    faults = ("4 x A100 PCIe, IOMMU on", "GKE A3 Mega fallen back to TCP")
    if row.system in faults:
        assert row.high_GBps < 0.9 * usual.low_GBps
    else:
        assert 0.9 * usual.low_GBps <= row.low_GBps
        assert row.high_GBps <= 1.1 * usual.most_GBps


def test_the_exceptions_are_few():
    assert len(UNLIKE) <= 0.2 * len(REFERENCES)


def test_every_figure_has_its_source():
    for row in REFERENCES:
        assert re.match(r"https://github\.com/\S+$", row.url), row
        assert row.tool, row
        assert 0 < row.low_GBps <= row.high_GBps, row
        assert row.ranks % row.nodes == 0, row
        assert row.hardware is not None or row.unlike, row
