"""A Python without torch: what needs none works, and what needs one names what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH = ("torch", "functorch", "nvidia_c", "nvidia-c", "triton")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A virtual environment with links to all packages of this one but torch."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(TORCH):
            (site / path.name).symlink_to(path)
    return [str(venv / "bin" / "python"), "-m", "distcheck"]


@pytest.mark.parametrize("words", [("node",), ("env", "--nproc=2"), ("net", "--nproc=2"), ("gpu", "--nproc=2")])
def test_commands_that_measure_nothing_need_no_torch(start, bare, words):
    ended = start(*words, "--format=json", program=bare).wait()
    # A machine of its own kind may have findings; a missing torch is none of them.
    assert ended.code in {0, 40} if words == ("node",) else ended.code == 0, ended
    assert "torch" not in json.dumps(ended.report["findings"])
    assert ended.report["world"]["torch"] is None


@pytest.mark.parametrize("command", ["gate", "isolate"])
def test_commands_that_measure_name_the_command_that_installs_torch(start, bare, command):
    ended = start(command, "--nproc=2", "--format=json", program=bare).wait()
    error = ended.error
    assert (ended.code, error["rule"], error["ranks"]) == (30, "sw-torch-missing", [0, 1]), ended
    assert error["fix"]["commands"] == [f"{bare[0]} -m pip install torch"]
