"""The tables: the same columns and cells in text, Markdown and HTML."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.device import DeviceTest
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.rank import RankRun
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.plain import bar
from distcheck.report.sections import gaps
from distcheck.report.tables import devices, not_checked, ranks, sweep, times
from distcheck.rules.finding import NotChecked

EVERYTHING = Detail(all_ranks=True, verbose=True)


@pytest.fixture
def full(job_of, judge):
    """A job whose tables have every column but those of adapters."""
    measured = (
        Measurement("all_reduce", 1 << 20, "float32", 5, (1e-3, 2e-3), bursts=9, uncertainty=0.01, ended="steady"),
        Measurement("all_reduce", 1 << 20, "float32", 5, (1e-3, 2e-3), group="pair", bursts=9),
    )
    job = msgspec.structs.replace(
        job_of(1, 2),
        asked=Asked("bandwidth", (), min_busbw_GBps=2.0),
        collectives=Collectives("gloo", measurements=measured),
    )
    tests = (DeviceTest("float32", 256, 0.09, 14.0), DeviceTest("float32", 256, 0.0801, 15.0))
    runs = (RankRun(1, "done", "done", device_test=test) for test in tests)
    job = msgspec.structs.replace(
        job, ranks=tuple(msgspec.structs.replace(rank, run=run) for rank, run in zip(job.ranks, runs, strict=True))
    )
    return judge(job, NotChecked(rule="a-rule", reason="a reason", required=False))


def drawn(kind, judged):
    """Return the tables of a report as lists of rows, the names first."""
    page = render(kind, *judged, options=EVERYTHING)
    if kind == "html":
        page = re.sub(
            r"(?s)<table class=\"(heat|pairs|time)\".*?</table>|id=\"facts\".*", "", page
        )  # it alone has these
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>|</table>", page)]
        rows = [[html.unescape(cell) for cell in row] for row in rows]
    elif kind == "markdown":
        lines = (line.replace("\\", "") for line in page.splitlines())
        rows = [re.findall(r" (.*?) \|", line) if line.startswith("| ") else [] for line in lines if "|--" not in line]
    else:
        lines = page.splitlines()
        rows = []
        for n, rule in enumerate(lines):
            if set(rule) == {"-", " "}:
                edges = [match.span() for match in re.finditer("-+", rule)]
                end = next(m for m in range(n + 1, len(lines)) if not re.match(r"^ *\w+ {2}", lines[m] + "  "))
                rows += [[lines[m][a:b].strip() for a, b in edges] for m in (n - 1, *range(n + 1, end))] + [[]]
    tables = [[]]
    for row in rows:
        tables[-1].append(row) if row else tables.append([])
    return [table for table in tables if table]


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_every_format_draws_the_same_tables(kind, full):
    report = document(*full)
    expected = [
        sweep(report),
        times(report, everything=True),
        devices(report),
        not_checked(gaps(full.diagnosis.not_checked)),
        ranks(report, everything=True, whole_uuids=True),
    ]
    if kind == "text":  # it lists what was not checked instead
        expected = [expected[4], sweep(report, bar), *expected[1:3]]
    elif kind == "html":
        expected = [*expected[:3], expected[3], expected[4]]
    found = drawn(kind, full)
    assert [table[0] for table in found] == [list(table.names) for table in expected]
    assert [table[1:] for table in found] == [[list(row) for row in table.rows] for table in expected]


def test_a_sweep_has_every_column_that_its_figures_need(full, healthy):
    assert sweep(document(*full)).names == (
        "operation", "group", "size", "algbw GB/s", "busbw GB/s", "expected", "share", "mean ms", "±", "min ms",
        "max ms", "slowest rank", "wrong",
    )  # fmt: skip
    assert not {"group", "expected", "share"} & set(sweep(document(*healthy)).names)


def test_the_devices_have_a_row_for_each_figure(full):
    assert devices(document(*full)).rows == (
        ("cpu", "float32 matrix speed, GFLOPS", "2", "80.10", "85.05", "90.00", "1", "94%"),
        ("cpu", "memory, GB/s", "2", "14.00", "14.50", "15.00", "0", "97%"),
    )


def test_a_missing_value_is_a_dash_and_zero_is_zero(job_of, judge):
    job = job_of(1, 2, world=3, gpus=False, measured=False)
    table = ranks(document(*judge(job)), everything=True, whole_uuids=False)
    assert table.names == ("rank", "node", "local", "master", "stage", "status")
    assert table.rows[0] == ("0", "node1", "0", "listening", "done", "ok")
    assert table.rows[2] == ("2", "-", "-", "-", "-", "missing")


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_every_format_explains_its_columns(kind, healthy):
    assert "its node (LOCAL" in render(kind, *healthy, options=Detail(legend=True)).replace("\\", "")
    assert "its node (LOCAL" not in render(kind, *healthy)
