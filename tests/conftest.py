"""Fixtures that tests of several families share."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_FAKE_NVML = Path(__file__).parent / "nvml" / "fake_nvml.c"


class FakeNvml(NamedTuple):
    """A loadable libnvidia-ml.so.1 whose answers a test writes down; tests/nvml/fake_nvml.c says how."""

    folder: Path
    facts: Path

    def environ(self, text: str) -> dict[str, str]:
        """Write down the answers and return this process's environment with the library found first."""
        self.facts.write_text(text)
        folders = [str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders), "DISTCHECK_FAKE_NVML": str(self.facts)}


@pytest.fixture(scope="session")
def _fake_nvml_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    command = [
        "cc",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libnvidia-ml.so.1",
    ]
    subprocess.run([*command, "-o", library, _FAKE_NVML], check=True)
    return folder


@pytest.fixture
def fake_nvml(_fake_nvml_folder, tmp_path):
    return FakeNvml(_fake_nvml_folder, tmp_path / "nvml.txt")
