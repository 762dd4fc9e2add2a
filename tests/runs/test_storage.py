"""A follower's part: what it looks for, and what it reports of its packages."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest
from made.jobs import node_of

from distcheck.facts.asked import Asked
from distcheck.facts.storage import Packages
from distcheck.rollcall.protocol import Welcome
from distcheck.run import storage

LEADER, FOLLOWER = "0123456789abcdef", "fedcba9876543210"


def task(folder, name, *, keeps=False):
    asked = Asked(command="env", looks=("storage",), paths=(str(folder),))
    return storage.task_of(asked, {"HOME": "/root"}, name, 9.0, 2, keeps=keeps)


@pytest.mark.parametrize(("hash_of_leader", "names"), [("a", ()), ("b", ("numpy==2",))])
@pytest.mark.process
def test_a_follower_sees_the_leaders_file_and_reports_only_packages_that_differ(tmp_path, hash_of_leader, names):
    async def run():
        leader = storage.start(task(tmp_path, LEADER, keeps=True), 20, os.environ)
        child = storage.start(task(tmp_path, FOLLOWER), 20, os.environ)
        try:
            await storage.heard(leader, 15)
            found = await storage.heard(child, 15)
            node = node_of(2, 0)
            node = storage.replace(node, storage=storage.replace(found, packages=Packages("a", ("numpy==2",))))
            follower = SimpleNamespace(
                storage=child, record=SimpleNamespace(node=node), remaining=lambda reserve=0.0: 20.0 - reserve
            )
            await storage.compare(follower, Welcome("n", "run", LEADER, packages=hash_of_leader))
            await leader.close(5)
            left = list(tmp_path.iterdir())
            (tmp_path / f".distcheck-{LEADER}").write_text(LEADER)
            storage.clean_up_after(follower, Welcome("n", "run", LEADER))
            return follower.record.node.storage, left
        finally:
            await child.close(5)

    found, left = asyncio.run(run())
    assert [folder.sees_sentinel for folder in found.folders] == [True]
    assert found.packages.names == names
    assert (left, list(tmp_path.iterdir())) == ([], []), "a leader that died leaves its file to the follower"


@pytest.mark.parametrize(("command", "folders"), [("env", {"/data"}), ("gate", {"/data", "/root", "/job"})])
def test_only_gate_and_node_look_at_the_folders_of_the_environment(command, folders):
    asked = Asked(command=command, looks=("storage",), paths=("/data",), folder="/job")
    assert set(storage.task_of(asked, {"HOME": "/root"}, LEADER, 9.0).folders) == folders


def test_too_little_time_is_no_look():
    assert storage.task_of(Asked(command="gate", looks=("storage",)), {}, LEADER, 4.9) is None
    assert storage.packages_of(SimpleNamespace(record=SimpleNamespace(node=None))) == ""


def test_a_file_server_gets_less_from_each_node_of_a_large_job():
    asked = Asked(command="gate", looks=("storage",))
    assert [storage.task_of(asked, {}, LEADER, 9.0, ranks).rate_bytes >> 10 for ranks in (1, 256, 8192)] == [
        4096,
        4096,
        128,
    ]
