"""Cgroups with small limits, of either version."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

Files = Mapping[str, object]
Cgroups = Callable[[Mapping[str, Files], Files], list[Path]]


def made(first: Mapping[str, Files], second: Files) -> list[Path]:
    """Make a cgroup for each controller of version 1, or one of version 2, and write these limits into its files."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tops = {c: Path(m[1]) for c in first for m in mounts if m[2] == "cgroup" and c in m[3].split(",")}
    unified = [Path(m[1]) for m in mounts if m[2] == "cgroup2"]
    enabled = (unified[0] / "cgroup.subtree_control").read_text().split() if unified else []
    wanted: dict[Path, Files] = {}
    if len(tops) == len(first):
        wanted = {tops[controller]: files for controller, files in first.items()}
    elif set(first) <= set(enabled):
        wanted = {unified[0]: second}
    if os.geteuid() or not wanted:
        lack = f"needs root and the controllers {', '.join(first)}"
        pytest.fail(lack, pytrace=False) if os.environ.get("CI") else pytest.skip(lack)
    folders = []
    for top, files in wanted.items():
        folder = top / f"distcheck-test-{os.getpid()}-{time.monotonic_ns()}"
        folder.mkdir()
        folders.append(folder)
        for name, value in files.items():
            (folder / name).write_text(str(value))
    return folders


def cgroups() -> Iterator[Cgroups]:
    """Yield what makes such cgroups; they are gone afterwards."""
    folders: list[Path] = []

    def make(first: Mapping[str, Files], second: Files) -> list[Path]:
        folders.extend(here := made(first, second))
        return here

    yield make
    for folder in folders:
        until = time.monotonic() + 5
        while folder.exists() and time.monotonic() < until:
            with suppress(OSError):  # busy until the kernel has done with its last process
                folder.rmdir()
            time.sleep(0.05)
        assert not folder.exists()
