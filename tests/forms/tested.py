"""Tests that run when their files have changed since they last passed, and with --slow.

They are those of the cluster itself, and the long simulations of the search for a bad node.
``python tests/forms/tested.py`` notes what they have passed with, after ``bash tests/run --slow
tests/cluster/test_cluster.py tests/isolation``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_TESTS = Path(__file__).parents[1]
NOTED = Path(__file__).with_name("tested.json")
_CLUSTER = (
    "cluster.py", "node.py", "node.sh", "instances.py", "cgroup.py", "running.py", "etc.py", "slurm.conf", "install",
    "test_cluster.py",
)  # fmt: skip


def files(group: str) -> list[Path]:
    """Return the files on which a group of tests depends: `cluster` or `isolation`."""
    if group == "cluster":
        return [_TESTS / "cluster" / name for name in _CLUSTER]
    return sorted([*(_TESTS.parent / "distcheck" / "isolation").glob("*.py"), *(_TESTS / "isolation").glob("*.py")])


def unchanged(group: str) -> bool:
    """Return whether the files of a group are those with which its tests passed."""
    return json.loads(NOTED.read_text())[group] == digest(group)


def digest(group: str) -> str:
    """Return the SHA-256 of a group's files with their names."""
    parts = (part for path in files(group) for part in (path.name.encode(), path.read_bytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    NOTED.write_text(json.dumps({group: digest(group) for group in ("cluster", "isolation")}, indent=2) + "\n")
