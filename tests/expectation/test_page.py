"""docs/bandwidth.md shows the tables that the code uses."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def build_bandwidth():
    spec = importlib.util.spec_from_file_location("build_bandwidth", DOCS / "build_bandwidth.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(build_bandwidth):
    text = build_bandwidth.PAGE.read_text(encoding="utf-8")
    assert build_bandwidth.page(text) == text, "run python docs/build_bandwidth.py"


def test_a_changed_figure_is_stale(build_bandwidth):
    text = build_bandwidth.PAGE.read_text(encoding="utf-8")
    assert build_bandwidth.page(text.replace("231.58", "231.59")) == text


def test_every_published_figure_is_on_it(build_bandwidth):
    text = build_bandwidth.PAGE.read_text(encoding="utf-8")
    rows = (*build_bandwidth.ONE_NODE, *build_bandwidth.OTHER_OPERATIONS, *build_bandwidth.SEVERAL_NODES)
    assert text.count("[source](") == len(rows)
    for row in rows:
        assert row.url in text
        assert f"{row.low_GBps:g}" in text


def test_a_page_without_a_place_for_the_table_is_rejected(build_bandwidth):
    with pytest.raises(ValueError, match="no place for the table"):
        build_bandwidth.page("# Bandwidth")
