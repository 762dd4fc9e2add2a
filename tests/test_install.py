"""What pip does to the torch of a site: nothing, unless it is asked to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BELOW_THE_FLOOR = "2.1.0a0+32f93b1"
"""A version of the kind that NVIDIA's containers have; pip takes it to be older than 2.1."""


def needs(text):
    """Return the names of the packages in a list of pyproject.toml."""
    return {re.match(r"[\w-]+", need)[0].lower() for need in re.findall(r'"([^"]+)"', text)}


def test_torch_is_an_extra_and_no_dependency():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = needs(re.search(r"(?ms)^dependencies = \[(.*?)^\]", project)[1])
    assert "msgspec" in dependencies
    assert "torch" not in dependencies
    assert needs(re.search(r"(?m)^torch = \[(.*)\]$", project)[1]) == {"torch"}


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "distcheck" / "py.typed").is_file()


@pytest.mark.slow
@pytest.mark.process
def test_pip_leaves_a_torch_of_any_version_alone_and_brings_none(tmp_path):
    def ended(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    ended(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("distcheck-*.whl")
    ended(sys.executable, "-m", "venv", "venv")
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")

    def chosen(*wanted):
        words = ("install", "--quiet", "--dry-run", "--report", "report.json", *wanted)
        ended(tmp_path / "venv" / "bin" / "python", "-m", "pip", *words)
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        return {item["metadata"]["name"].lower() for item in report["install"]}

    assert "torch" not in chosen(str(wheel))
    info = site / f"torch-{BELOW_THE_FLOOR}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {BELOW_THE_FLOOR}\n")
    (info / "RECORD").touch()
    assert "torch" not in chosen(str(wheel))
    assert "torch" in chosen(f"{wheel}[torch]")  # as a dependency would
