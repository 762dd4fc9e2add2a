"""What each form of a test run leaves out, and that --quick keeps its promise."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
import subprocess
import pytest
from hypothesis import settings


def test_a_value():
    print("examples", settings().max_examples)


def test_that_hides_its_process():
    try:
        subprocess.run(["true"])
    except BaseException:
        pass


@pytest.mark.process
def test_that_says_so():
    subprocess.run(["true"], check=True)


@pytest.mark.slow
def test_a_soak():
    pass
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("form", "outcome", "examples"),
    [
        ([], "3 passed, 1 skipped", 40),
        (["--quick"], "1 failed, 1 passed, 1 skipped, 1 deselected", 40),
        (["--slow"], "4 passed", 2000),
    ],
    ids=["a change", "quick", "slow"],
)
def test_each_form_runs_what_it_says(tmp_path, form, outcome, examples):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    shutil.copytree(Path(__file__).with_name("forms"), tmp_path / "forms")
    (tmp_path / "test_some.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir=."]
    ran = subprocess.run([*command, *form, "test_some.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1].startswith(f"{outcome} in "), ran.stdout
    assert f"examples {examples}\n" in ran.stdout
    if form == ["--quick"]:
        assert "\nstarts a process and is not marked `process`: subprocess.Popen" in ran.stdout
