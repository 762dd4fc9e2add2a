"""The hosts that a scheduler's file lists: each counts once, and a file that cannot be read does not count."""

from __future__ import annotations

import pytest

from distcheck.probe import own


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1\nnode2\n", 2),
        ("node1\nnode1\nnode2\nnode2", 2),  # PBS: a line for each slot
        ("node1 4 all.q@node1 UNDEFINED\nnode2 4 all.q@node2 UNDEFINED\n", 2),  # Grid Engine
        ("# two hosts\nnode1 slots=8\n\nnode2:8  # the second\n", 2),
        ("", None),
    ],
)
def test_each_host_of_a_file_counts_once(tmp_path, text, hosts):
    (tmp_path / "hosts").write_text(text)
    found = own.hosts_listed({"PBS_NODEFILE": str(tmp_path / "hosts"), "LSB_DJOB_HOSTFILE": ""})
    assert found == ({"PBS_NODEFILE": hosts} if hosts else {})


@pytest.mark.parametrize("path", ["/nowhere/hosts", "/", "a\0b"])
def test_a_file_that_cannot_be_read_does_not_count(path):
    assert own.hosts_listed({"PBS_NODEFILE": path}) == {}
