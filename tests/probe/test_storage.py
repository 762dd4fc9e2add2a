"""The child that looks at folders: what it finds, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from msgspec.json import encode
from real.waiting import until

from distcheck.facts.base import Missing
from distcheck.facts.storage import Storage, is_network
from distcheck.probe import disk_rates
from distcheck.probe.child import Conversation
from distcheck.probe.storage import Order, SentinelSeen, StorageTask, _Looker, by_path, folders_of, question

NAME, OTHER = "0123456789abcdef", "fedcba9876543210"


def task(*folders, **more):
    return StorageTask(NAME, {str(folder): ("--path",) for folder in folders}, rate_bytes=1 << 16, **more)


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def talk(task, during=None):
    """Return the child's answer, and what `during` returns while the child waits."""

    async def run():
        child = Conversation(question(task), 20, os.environ)
        try:
            answer = await child.hear(Storage, 15)
            return answer, await during(child) if during is not None else None
        finally:
            await child.close(5)

    return asyncio.run(run())


def test_what_names_a_folder_is_kept_and_only_absolute_paths_count():
    environ = {"HOME": "/home/u/", "TMPDIR": "tmp", "HF_HOME": "/home/u", "PWD": "/home/me", "TORCH_HOME": "/\udcff"}
    assert folders_of(environ, "/home/me", "code/train.py") == {
        "/home/me": ("working directory", "PWD"),
        "/home/me/code": ("script",),
        "/home/u": ("HOME", "HF_HOME"),
    }
    assert folders_of({"PWD": "/"}, "", "") == {}
    assert by_path([("/a/../b", "x"), ("/b", "y"), ("", "z")]) == {"/b": ("x", "y")}


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs4", True), ("lustre", True), ("fuse.juicefs", True), ("tmpfs", False), ("fuse.fuse-overlayfs", False)],
)
def test_the_type_of_a_file_system_tells_whether_nodes_share_it(kind, network):
    assert is_network(kind) == network


@pytest.mark.process
def test_folders_files_and_packages_are_one_answer_and_no_file_is_left(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "train.py").write_text("")
    words = ("sh", "train.py")
    answer, left = talk(
        task(tmp_path, tmp_path / "fifo", tmp_path / "absent", words=words, here=str(tmp_path), packages=True)
    )
    folder, fifo, absent = answer.folders
    assert (folder.state, fifo.state, absent.state) == ("folder", "other", "absent")
    assert (folder.write_error, folder.holds_sentinel) == ("", False)
    assert folder.write_MBps > 0 < folder.read_MBps
    assert folder.file_system
    assert [file.state for file in answer.files] == ["file", "file"]
    assert len(answer.packages.names) > 3
    assert (left, files_in(tmp_path)) == (None, ["fifo", "train.py"])


@pytest.mark.process
def test_the_leaders_file_stays_is_seen_with_its_content_only_and_is_removed(tmp_path):
    async def look(child):
        kept = files_in(tmp_path)
        (tmp_path / f".distcheck-{OTHER}").write_text("something else")
        seen = []
        for name in (NAME, OTHER):
            child.say(encode(Order(see=name)).decode())
            seen.append((await child.hear(SentinelSeen, 10)).folders)
        child.say(encode(Order(erase="../" * 3)).decode())
        child.say(encode(Order(erase=OTHER)).decode())
        return kept, seen

    answer, (kept, seen) = talk(task(tmp_path, keeps=True), look)
    assert answer.folders[0].holds_sentinel
    assert kept == [f".distcheck-{NAME}"]
    assert seen == [{str(tmp_path): True}, {str(tmp_path): False}]
    assert files_in(tmp_path) == []


@pytest.mark.process
def test_two_paths_to_one_folder_are_both_writable(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for keeps in (False, True):
        answer, _ = talk(task(tmp_path / "folder", tmp_path / "link", keeps=keeps))
        assert [(f.write_error, f.holds_sentinel) for f in answer.folders] == [("", keeps)] * 2
    assert files_in(tmp_path / "folder") == []


def test_folders_are_looked_at_and_left_as_they_were_where_no_further_thread_may_start(tmp_path, monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    looker = _Looker(task(tmp_path, keeps=True))
    assert [(f.state, f.holds_sentinel) for f in looker.storage().folders] == [("folder", True)]
    looker.erase_all()
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGALRM])
@pytest.mark.process
def test_a_signal_that_ends_the_child_removes_its_file(tmp_path, number):
    async def end(child):
        child._child.send_signal(number)
        return await child.hear(Storage, 5)

    _, answer = talk(task(tmp_path, keeps=True), end)
    assert isinstance(answer, Missing)
    assert files_in(tmp_path) == []


@pytest.mark.process
def test_the_file_is_removed_when_the_process_that_asked_is_killed(tmp_path):
    reading, writing = os.pipe()
    asking = os.fork()
    if asking == 0:
        talk(task(tmp_path, keeps=True), lambda _: asyncio.sleep(60, os.write(writing, b"x")))
        os._exit(1)
    try:
        os.read(reading, 1)
        assert files_in(tmp_path) == [f".distcheck-{NAME}"]
    finally:
        os.kill(asking, signal.SIGKILL)
        os.waitpid(asking, 0)
    until(lambda: not files_in(tmp_path))


def test_the_rates_are_of_the_best_chunk(tmp_path, monkeypatch):
    slept = iter([0.2, 0.0, 0.2, 0.2])
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (time.sleep(next(slept)), fsync(fd)))
    write, read = disk_rates.measure(str(tmp_path / "x"), 4 << 16)
    assert write > (1 << 16) / 0.2 / 1e6
    assert read > 0
    assert (tmp_path / "x").stat().st_size == 4 << 16
