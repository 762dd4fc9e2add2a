"""The cgroups that hold a cluster's processes: to list, freeze and end them without ever naming a pid."""

from __future__ import annotations

import time
from pathlib import Path


def hierarchy() -> Path:
    """Return where the cgroup v2 hierarchy is mounted, which may be beside v1's."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    raise LookupError("no cgroup v2 hierarchy is mounted")


def joined(cgroup: Path) -> list[str]:
    """Return the start of a command that runs the rest of it in the cgroup."""
    return ["sh", "-c", f'echo 0 > {cgroup}/cgroup.procs && exec "$@"', "sh"]


def members(cgroup: Path) -> list[int]:
    return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]


def freeze(cgroup: Path, *, frozen: bool) -> None:
    (cgroup / "cgroup.freeze").write_text(str(int(frozen)))
    _await(cgroup, f"frozen {int(frozen)}")


def kill(cgroup: Path) -> None:
    """End what is in the cgroup and in those below it."""
    (cgroup / "cgroup.kill").write_text("1")
    _await(cgroup, "populated 0")


def remove(cgroup: Path) -> None:
    """End what is in the cgroup and remove it; nothing to do when there is none."""
    if cgroup.exists():
        kill(cgroup)
        for inner in [path for path in cgroup.iterdir() if path.is_dir()]:
            inner.rmdir()
        cgroup.rmdir()


def _await(cgroup: Path, event: str, timeout: float = 20) -> None:
    until = time.monotonic() + timeout
    while event not in (cgroup / "cgroup.events").read_text():
        if time.monotonic() > until:
            raise TimeoutError(f"{cgroup} is not {event} after {timeout} s")
        time.sleep(0.002)
