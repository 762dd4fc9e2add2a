"""Tests on real NVIDIA hardware; skipped without it, where the fake libraries are used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from end_to_end.conftest import by_hand, distcheck, mark, port, start  # noqa: F401 fixtures

HERE = Path(__file__).parent


class Card(NamedTuple):
    """A GPU as nvidia-smi reports it, independently of distcheck."""

    index: int
    uuid: str
    pci: str
    name: str


def _cards() -> list[Card]:
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    rows = (
        [[cell.strip() for cell in line.split(",")] for line in told.stdout.splitlines()] if not told.returncode else []
    )
    return [Card(int(i), uuid, pci[-12:].lower(), name) for i, uuid, pci, name in rows]


def pytest_collection_modifyitems(items):
    here = [item for item in items if item.path.parent == HERE]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        # One process at a time, because they share the GPUs.
        item.add_marker(pytest.mark.xdist_group("gpu"))
    if here and not _cards():
        for item in here:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


@pytest.fixture(scope="session")
def cards():
    return _cards()


@pytest.fixture(scope="session")
def on_cpus():
    """Return nothing that would keep the runs here from the GPUs."""
    return {}
