"""Which clusters stand on this machine: a folder each, with its owner's pid and start time."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from cluster import cgroup

FOLDERS = Path(tempfile.gettempdir())
NAME = "distcheck-cluster-"


def claim(folder: Path) -> None:
    """Make a cluster's folder, owned by this process from its first moment on."""
    unfinished = folder.with_name(f".{folder.name}")
    unfinished.mkdir(mode=0o755)
    (unfinished / "owner").write_text(f"{os.getpid()} {psutil.Process().create_time()}")
    unfinished.rename(folder)


def release(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what is left of clusters whose owner was killed."""
    for folder in FOLDERS.glob(f"{NAME}*"):
        with suppress(OSError):  # another process sweeps at the same time
            if not _owned(folder):
                cgroup.remove(cgroup.hierarchy() / folder.name)
                release(folder)


def _owned(folder: Path) -> bool:
    pid, started = (folder / "owner").read_text().split()
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(int(pid)).create_time() == float(started)
    return False
