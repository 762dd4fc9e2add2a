"""Paths of file systems that may not answer: touched by a fork, which is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from real.waiting import until

from distcheck.facts import files, outputs, touch
from distcheck.facts.errors import WriteError
from distcheck.facts.mounts import Mount
from distcheck.facts.storage import Space

pytestmark = pytest.mark.process
NAS = Mount("/nas", (), "nfs4", "nas:/x", ())


@pytest.fixture(autouse=True)
def remote(monkeypatch, tmp_path):
    """Let what is below one folder be remote."""
    folder = tmp_path / "nas"
    folder.mkdir()
    monkeypatch.setattr(touch, "_silent", {})
    monkeypatch.setattr(touch, "_answered", set())
    monkeypatch.setattr(touch, "remote_mount", lambda path: NAS if path.startswith(str(folder)) else None)
    return folder


def test_only_what_may_not_answer_is_touched_by_a_fork(remote, tmp_path):
    assert touch.touch(tmp_path, "HOME", os.getpid) == os.getpid()
    assert touch.touch(remote, "HOME", os.getpid) != os.getpid()
    assert touch.touch(remote, "HOME", lambda: Space(1, 2, 3, writable=True), kind=Space) == Space(
        1, 2, 3, writable=True
    )
    with pytest.raises(FileNotFoundError, match="No such file"):
        touch.touch(remote, "HOME", lambda: (remote / "none").stat().st_size)
    with pytest.raises(OSError, match="was killed"):
        touch.touch(remote, "HOME", lambda: os.kill(os.getpid(), 9))
    assert touch.silent() == ()


def test_what_does_not_answer_is_left_in_time_and_asked_once(remote, tmp_path):
    waits = tmp_path / "pid"

    def wait():
        waits.write_text(str(os.getpid()))
        time.sleep(60)

    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"the file system at /nas \(nfs4\) did not answer within 0.3 s"):
            touch.touch(remote / "u", "HOME", wait, 0.3)
    assert time.monotonic() - began < 10
    until(lambda: not Path(f"/proc/{waits.read_text()}").exists() or _is_dead(waits.read_text()))
    ((path, names, seconds),) = [(one.path, one.named_by, one.seconds) for one in touch.silent()]
    assert (path, names, seconds) == (str(remote / "u"), ("HOME",), 0.3)


def _is_dead(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_file_system_that_answered_is_not_asked_for_another_folder(remote, monkeypatch):
    forked = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: (forked.append(1), fork())[1])
    for folder in (remote, remote / "none", remote.parent):
        touch.ask(str(folder), "HOME")
    assert (len(forked), touch.silent()) == (1, ())


def test_a_fork_keeps_nothing_of_its_parent_open(remote):
    with Path(os.devnull).open() as file:
        opened = touch.touch(remote, "HOME", lambda: sorted(map(int, os.listdir("/proc/self/fd"))))  # noqa: PTH208
        assert file.fileno() in [*range(3), *map(int, os.listdir("/proc/self/fd"))]  # noqa: PTH208
    assert opened[:4] == [0, 1, 2, 3]
    assert len(opened) == 5, "the last one is the folder itself"


def test_files_of_a_server_are_read_and_written_as_others(remote):
    big = "é" * (1 << 20)
    outputs.write(remote / "report", big)
    assert outputs.check_writable(remote / "report", "--output") == str(remote / "report")
    assert files.read(remote / "report", 1 << 30) == big.encode()
    (remote / "link").symlink_to("other")
    outputs.write(remote / "link", "text")
    assert (remote / "other").read_text() == "text"
    assert sorted(path.name for path in remote.iterdir()) == ["link", "other", "report"]


def test_an_output_that_does_not_answer_is_no_usage_error(remote):
    touch.note([touch.Silent(str(remote), ("HOME",), "nfs4", "", "/nas", 5.0)])
    assert outputs.check_writable(remote / "report", "--output") is None
    with pytest.raises(WriteError, match=r"the file system at /nas \(nfs4\) did not answer within 5 s"):
        outputs.write(remote / "report", "text")


def test_a_folder_of_path_that_does_not_answer_is_passed_over(remote, tmp_path, monkeypatch):
    for folder in (remote, tmp_path):
        (folder / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{remote}:{tmp_path}")
    assert touch.which("srun") == f"{remote}/srun"
    touch.note([touch.Silent(str(remote), ("PATH",), "nfs4", "", "/nas", 5.0)])
    assert touch.which("srun") == f"{tmp_path}/srun"
    assert touch.which(f"{remote}/srun") is None
