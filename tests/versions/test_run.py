"""The script that tries versions names files that are there; its quick form, run in every change, needs few of them."""

from pathlib import Path

from versions import run

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_matrix_runs_is_there():
    assert [path for path in run._TESTS + run._QUICK_TESTS if not (ROOT / path).is_file()] == []
