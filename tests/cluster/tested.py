"""The tests of the cluster itself run when its files have changed since they last passed, and with --slow.

``python tests/cluster/tested.py`` notes, after they have passed, what they have passed with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
NOTED = HERE / "tested.sha256"
FILES = (
    "cluster.py", "node.py", "node.sh", "instances.py", "cgroup.py", "running.py", "etc.py", "slurm.conf", "install",
    "test_cluster.py",
)  # fmt: skip


def unchanged() -> bool:
    """Return whether the cluster's files are those with which its tests passed."""
    return NOTED.read_text().strip() == digest()


def digest() -> str:
    """Return the SHA-256 of the files with their names."""
    parts = (part for name in FILES for part in (name.encode(), (HERE / name).read_bytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    NOTED.write_text(f"{digest()}\n")
