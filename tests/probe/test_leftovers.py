"""Files of ended jobs in /dev/shm, with a real process that uses some of them."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from distcheck.facts.base import Missing
from distcheck.probe import leftovers

SIZE = 3 * mmap.PAGESIZE
HOUR = 3600.0


@pytest.fixture
def segment(tmp_path, monkeypatch):
    """Make files of three pages, an hour old, in place of /dev/shm: there other tests would report them."""
    monkeypatch.setattr(leftovers, "SHM", str(tmp_path))

    def make(suffix, age=HOUR):
        path = tmp_path / f"nccl-{suffix}"
        path.write_bytes(bytes(SIZE))
        os.utime(path, (time.time() - age,) * 2)
        return path

    return make


def test_a_file_that_no_process_uses_is_left_over_and_a_used_one_is_not(segment):
    gone = segment("gone")
    segment("new", age=5)
    opened, mapped = segment("opened").open(), segment("mapped").open()
    with mmap.mmap(mapped.fileno(), SIZE, prot=mmap.PROT_READ):
        mapped.close()
        found = leftovers.unused()
        opened.close()
    assert [(file.name, file.bytes, file.uid) for file in found] == [
        ("nccl-gone", gone.stat().st_blocks * 512, os.getuid())
    ]
    assert found[0].age_seconds == pytest.approx(HOUR, abs=60)


def machine(root, *, namespace=4026531836, uid="1000", age=HOUR):
    """Make a machine with a file in /dev/shm and a process of some user whose maps are empty."""
    (root / "dev/shm").mkdir(parents=True)
    file = root / "dev/shm/torch_77_1_2"
    file.write_bytes(bytes(100))
    os.utime(file, (time.time() - age,) * 2)
    (root / "dev/shm/own-file").write_bytes(bytes(100))
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
    (root / "proc/5/fd").mkdir(parents=True)
    (root / "proc/5/maps").write_text("7f00-7f01 r--p 00000000 00:01 1 /usr/lib/libc.so.6\n")
    (root / "proc/5/status").write_text(f"Name: x\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    return root


def test_files_with_other_names_and_fresh_files_are_no_candidates(tmp_path):
    assert [path.name for path in leftovers.candidates(machine(tmp_path))] == ["torch_77_1_2"]
    os.utime(tmp_path / "dev/shm/torch_77_1_2")
    assert leftovers.candidates(tmp_path) == {}
    assert leftovers.unused(tmp_path) == []


def test_in_a_container_nothing_is_said(tmp_path):
    assert isinstance(leftovers.unused(machine(tmp_path, namespace=7)), Missing)


@pytest.mark.parametrize(
    ("own", "program", "left"), [(True, "python", 0), (True, "ssh-agent", 1), (False, "python", 1)]
)
def test_a_file_may_be_in_use_by_hidden_processes_of_its_user_but_for_agents(tmp_path, monkeypatch, own, program, left):
    monkeypatch.setattr(leftovers, "in_use", lambda _: None)
    machine(tmp_path, uid=str(os.getuid() if own else 54321))
    (tmp_path / "proc/5/comm").write_text(f"{program}\n")
    assert [file.name for file in leftovers.unused(tmp_path)] == ["torch_77_1_2"] * left


def test_a_machine_without_shared_memory_has_no_files(tmp_path):
    assert leftovers.candidates(tmp_path) == {}
