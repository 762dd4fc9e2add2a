"""The script that tries versions names files that are there; its quick form, run in every change, needs few of them."""

from pathlib import Path

from versions import run
from versions.run import measured

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_matrix_runs_is_there():
    assert [path for path in run._TESTS + run._QUICK_TESTS if not (ROOT / path).is_file()] == []


def test_every_table_covers_files_that_are_there():
    assert measured.digest(run.COVERS, ROOT)
