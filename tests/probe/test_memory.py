"""How cgroups count memory shortages: both versions, containers, and missing counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.probe.memory import Shortage, marks, since

MIB = 1 << 20


class Machine:
    """A /proc/self and a cgroup hierarchy of one version, in a folder."""

    def __init__(self, folder: Path, version: int, own: str = "/job/step") -> None:
        self.version, self.top, self.root = version, folder, folder / "cgroup"
        self.proc = folder / "proc" / "self"
        self.proc.mkdir(parents=True)
        line = f"0::{own}" if version == 2 else f"12:cpu,cpuacct:/\n4:memory:{own}\n0::/elsewhere"
        (self.proc / "cgroup").write_text(line + "\n")
        kind = "cgroup2 /cgroup cgroup2 rw" if version == 2 else "cgroup /cgroup cgroup rw,memory"
        not_utf_8 = b"tmpfs /mnt/caf\xe9 tmpfs rw 0 0\n"
        (self.proc / "mounts").write_bytes(not_utf_8 + f"tmpfs /dev/shm tmpfs rw 0 0\n{kind} 0 0\n".encode())
        self.group("/")

    def group(self, path: str, *, limit: int | None = None, shortages: int = 0, kills: int = 0) -> None:
        folder = self.root / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            (folder / "memory.events").write_text(f"low 0\nhigh 7\nmax 9\noom {shortages}\noom_kill {kills}\n")
            (folder / "memory.max").write_text(f"{'max' if limit is None else limit}\n")
        else:
            (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
            (folder / "memory.failcnt").write_text(f"{shortages}\n")
            (folder / "memory.limit_in_bytes").write_text(f"{9223372036854771712 if limit is None else limit}\n")


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def machine(request, tmp_path):
    return Machine(tmp_path, request.param)


def test_without_a_kill_there_is_no_shortage(machine):
    machine.group("/job", limit=512 * MIB, kills=3)
    machine.group("/job/step", kills=3)
    before = marks(machine.top)
    assert since(before, machine.top) == Shortage(0, None, "")


def test_a_reached_limit_without_a_kill_is_not_reported(machine):
    machine.group("/job/step", limit=512 * MIB)
    before = marks(machine.top)
    machine.group("/job/step", limit=512 * MIB, shortages=40)
    assert since(before, machine.top) == Shortage(0, None, "")


def test_the_innermost_limit_that_was_reached_is_named(machine):
    machine.group("/job", limit=512 * MIB, shortages=2, kills=1)
    machine.group("/job/step", kills=1)
    before = marks(machine.top)
    machine.group("/job", limit=512 * MIB, shortages=5, kills=2)
    machine.group("/job/step", kills=2)
    assert since(before, machine.top) == Shortage(1, 512 * MIB, str(machine.root / "job"))


def test_an_inner_limit_is_preferred_to_an_outer_one(machine):
    machine.group("/job", limit=512 * MIB)
    machine.group("/job/step", limit=64 * MIB)
    before = marks(machine.top)
    machine.group("/job", limit=512 * MIB, shortages=3, kills=2)
    machine.group("/job/step", limit=64 * MIB, shortages=3, kills=2)
    assert since(before, machine.top) == Shortage(2, 64 * MIB, str(machine.root / "job" / "step"))


def test_a_kill_without_a_limit_is_a_shortage_of_the_node(machine):
    machine.group("/job/step")
    before = marks(machine.top)
    machine.group("/job/step", kills=1)
    assert since(before, machine.top) == Shortage(1, None, "")


def test_a_container_that_sees_its_cgroup_as_the_root_is_read_there(machine):
    machine.group("/", limit=64 * MIB)  # /job/step is not to be seen
    before = marks(machine.top)
    machine.group("/", limit=64 * MIB, shortages=1, kills=1)
    assert since(before, machine.top) == Shortage(1, 64 * MIB, str(machine.root))


def test_missing_counters_have_a_reason(tmp_path):
    machine = Machine(tmp_path, 2)
    (machine.root / "memory.events").unlink()
    assert isinstance(marks(machine.top), Missing)
    (machine.proc / "mounts").write_text("")
    assert marks(machine.top) == Missing(reason="no cgroup limits the memory of this process")
    assert isinstance(since(Missing(reason="gone"), machine.top), Missing)
    assert isinstance(marks(tmp_path / "nothing"), Missing)
