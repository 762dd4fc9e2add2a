"""Fixtures that tests of several families share."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_FAKES = Path(__file__).parent / "nvml"


class FakeNvml(NamedTuple):
    """A loadable libnvidia-ml.so.1, and a libcuda.so.1 beside it, whose answers a test writes down.

    What can be written is said in tests/nvml/fake_nvml.c and tests/nvml/fake_cuda.c.
    """

    folder: Path
    facts: Path

    def environ(self, text: str) -> dict[str, str]:
        """Write down the answers and return this process's environment with the libraries found first."""
        self.facts.write_text(text)
        folders = [str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders), "DISTCHECK_FAKE_NVML": str(self.facts)}


@pytest.fixture(scope="session")
def _fake_nvml_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    for source, library in (("fake_nvml.c", "libnvidia-ml.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library}"]
        subprocess.run([*command, "-o", folder / library, _FAKES / source], check=True)
    return folder


@pytest.fixture
def fake_nvml(_fake_nvml_folder, tmp_path):
    return FakeNvml(_fake_nvml_folder, tmp_path / "nvml.txt")
