"""How cgroups count memory shortages: both versions, containers, and missing counters."""

from __future__ import annotations

import pytest
from made.cgroups import MIB, Machine

from distcheck.facts.base import Missing
from distcheck.probe.memory import death, marks


def since(before, root):
    """Return the kills, and the limit that was reached with its cgroup."""
    found = death(before, "the last words", root)
    assert found.said == "the last words"
    assert found.shm is not None
    return found.oom_kills, found.memory_limit_bytes, found.memory_cgroup


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def machine(request, tmp_path):
    return Machine(tmp_path, request.param)


LIMIT, TIGHT = {"limit": 512 * MIB}, {"limit": 64 * MIB}
SHORT, KILLED = {"shortages": 5, "kills": 2}, {"kills": 2}


@pytest.mark.parametrize(
    ("before", "after", "kills", "short"),
    [
        ((LIMIT | KILLED, KILLED), (LIMIT | KILLED, KILLED), 0, ""),
        (({}, LIMIT), ({}, LIMIT | {"shortages": 40}), 0, ""),  # the limit was reached, and nothing was killed
        (({}, {}), ({}, KILLED), 2, ""),  # the memory of the node
        ((LIMIT | {"shortages": 2, "kills": 1}, {"kills": 1}), (LIMIT | SHORT, KILLED), 1, "job"),
        ((LIMIT, TIGHT), (LIMIT | SHORT, TIGHT | SHORT), 2, "job/step"),  # the inner one before the outer one
    ],
)
def test_after_a_kill_the_innermost_limit_that_was_reached_is_named(machine, before, after, kills, short):
    def count(*groups):
        for group, counted in zip(("job", "job/step"), groups, strict=True):
            machine.memory(group, **counted)

    count(*before)
    marked = marks(machine.root)
    count(*after)
    limit = {"": None, "job": 512 * MIB, "job/step": 64 * MIB}[short]
    assert since(marked, machine.root) == (kills, limit, short and str(machine.folder("memory", short)))


def test_a_container_that_sees_its_cgroup_as_the_root_is_read_there(machine):
    machine.folder("memory").rename(machine.root / "elsewhere")
    machine.memory("", 64 * MIB)
    before = marks(machine.root)
    machine.memory("", 64 * MIB, shortages=1, kills=1)
    assert since(before, machine.root) == (1, 64 * MIB, str(machine.folder("memory", "")))


def test_missing_counters_have_a_reason(tmp_path):
    machine = Machine(tmp_path, 2)
    assert isinstance(marks(machine.root), Missing)
    (tmp_path / "proc/self/mounts").write_text("")
    assert marks(machine.root) == Missing(reason="no cgroup limits the memory of this process")
    assert since(Missing(reason="gone"), machine.root)[0] == Missing(reason="gone")
    assert isinstance(marks(tmp_path / "nothing"), Missing)
