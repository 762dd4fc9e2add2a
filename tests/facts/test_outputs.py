from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from real.waiting import until

from distcheck.facts import outputs
from distcheck.facts.errors import UsageError, WriteError


def test_a_path_that_may_not_be_looked_at_is_a_usage_error(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    for option in ("--output", "--save"):
        with pytest.raises(UsageError, match=f"{option} {tmp_path}/job.json: Permission denied; choose another"):
            outputs.check_writable(tmp_path / "job.json", option)


def test_a_failed_write_leaves_no_partial_file(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(WriteError):
        outputs.write(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_pipe_that_no_program_reads_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "_READER_SECONDS", 0.2)
    monkeypatch.setattr(outputs, "PIPE_SECONDS", 0.2)
    pipe = tmp_path / "report"
    os.mkfifo(pipe)
    helped = threading.Timer(5, lambda: os.open(pipe, os.O_RDWR))  # a wait without end ends here
    helped.start()
    with pytest.raises(
        WriteError, match=r"report could not be written: no program opened the pipe to read it within 0\.2 s"
    ):
        outputs.write(pipe, "x")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    helped.cancel()
    with pytest.raises(WriteError, match=r"report could not be written: nothing was read from it for 0\.2 s"):
        outputs.write(pipe, "x" * (1 << 20))
    os.close(reader)


def test_a_pipe_whose_reader_comes_a_moment_later_is_written_to_its_end(tmp_path):
    pipe, got = tmp_path / "report", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Timer(0.3, lambda: got.append(pipe.read_bytes()))
    reader.start()
    outputs.write(pipe, "é" * (1 << 18))
    reader.join()
    assert got == [("é" * (1 << 18)).encode()]


def test_a_file_is_written_under_a_temporary_name_and_then_renamed(tmp_path, monkeypatch):
    replaces, renamed = Path.replace, []

    def watched_replace(path, target):
        renamed.append(target)
        assert (path.parent, path.read_text()) == (tmp_path, "whole")
        assert target.read_text() == "of before"
        return replaces(path, target)

    target = tmp_path / "report"
    target.write_text("of before")
    monkeypatch.setattr(Path, "replace", watched_replace)
    outputs.write(target, "whole")
    assert renamed == [target]
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_is_kept_and_what_it_leads_to_is_written(tmp_path):
    there, before = tmp_path / "there", tmp_path / "link"
    there.mkdir()
    (tmp_path / "second").symlink_to("there/report")
    before.symlink_to(tmp_path / "second")
    for text in ("new", "again"):
        assert outputs.check_writable(before, "--output") == str(there / "report")
        outputs.write(before, text)
        assert before.is_symlink()
        assert (there / "report").read_text() == text
    assert list(there.iterdir()) == [there / "report"]
    before.unlink()
    before.symlink_to(tmp_path / "nowhere" / "report")
    with pytest.raises(UsageError, match=f"this link leads to .*; the folder {tmp_path}/nowhere does not exist"):
        outputs.check_writable(before, "--output")
    before.unlink()
    before.symlink_to(before)
    with pytest.raises(UsageError, match="Too many levels of symbolic links"):
        outputs.check_writable(before, "--output")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_link_that_another_user_put_into_a_folder_of_all_is_refused(tmp_path):
    precious, link, user = tmp_path / "precious", tmp_path / "tmp" / "report", 4321
    precious.write_text("precious")
    link.parent.mkdir()
    link.parent.chmod(0o1777)
    link.symlink_to(precious)
    os.lchown(link, user, user)
    with pytest.raises(UsageError, match=f"--output {link}: {link} is a link that user {user} put into a folder of"):
        outputs.check_writable(link, "--output")
    with pytest.raises(WriteError):
        outputs.write(link, "report")
    assert precious.read_text() == "precious"
    os.chown(link.parent, user, user)  # whose folder it is may put links there
    outputs.write(link, "report")
    assert precious.read_text() == "report"


def test_a_temporary_name_that_somebody_guessed_is_not_followed(tmp_path, monkeypatch):
    precious, target = tmp_path / "precious", tmp_path / "report"
    precious.write_text("precious")
    monkeypatch.setattr(outputs.os, "urandom", bytes)
    (tmp_path / f".report.{bytes(4).hex()}").symlink_to(precious)
    with pytest.raises(WriteError):
        outputs.write(target, "again")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", ["/proc/self/fd/{}", "/dev/fd/{}", "/proc/thread-self/fd/{}"])
def test_a_descriptor_is_written_to_as_it_is_open(tmp_path, name):
    log, link = tmp_path / "log", tmp_path / "link"
    with log.open("w") as file:
        file.write("before\n")
        file.flush()
        link.symlink_to(name.format(file.fileno()))
        with pytest.raises(UsageError, match=rf"--output .*: descriptor {file.fileno()} is not open; open it, for"):
            outputs.check_writable(link, "--output")  # distcheck's own files are not inherited
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003
        assert outputs.check_writable(link, "--output") is None
        outputs.write(link, "report\n")
        file.write("after\n")
    assert log.read_text() == "before\nreport\nafter\n"
    assert link.is_symlink()
    with log.open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003
        with pytest.raises(UsageError, match="is open for reading only; name another"):
            outputs.check_writable(Path(name.format(file.fileno())), "--output")


@pytest.mark.process
def test_another_process_log_is_appended_to(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as file:
        command = ["sh", "-c", "echo before; read end"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, text=True) as other:
            until(log.read_text)
            outputs.write(Path(f"/proc/{other.pid}/fd/1"), "report\n")
            other.communicate("end\n")
    assert log.read_text() == "before\nreport\n"


@pytest.mark.parametrize(
    ("kind", "named"), [(stat.S_IFSOCK, "a socket"), (stat.S_IFBLK, "a disk"), (stat.S_IFDIR, "a folder")]
)
def test_a_socket_a_disk_and_a_folder_are_refused_and_stay(tmp_path, monkeypatch, kind, named):
    place = tmp_path / "place"
    place.touch()
    monkeypatch.setattr(outputs, "_kind", lambda _: kind)
    with pytest.raises(UsageError, match=f"--output {place}: this is {named}; name a file"):
        outputs.check_writable(place, "--output")
    with pytest.raises(WriteError, match=f"{place} could not be written: it is {named}; choose another file"):
        outputs.write(place, "report")
    assert place.read_text() == ""


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY])
def test_a_file_whose_folder_takes_no_other_is_written_in_place(tmp_path, monkeypatch, reason):
    target = tmp_path / "report"
    target.write_text("of before, and longer")

    def refuse(*_):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(Path, "replace", refuse)
    outputs.write(target, "report")
    assert target.read_text() == "report"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(WriteError, match=os.strerror(reason)):
        outputs.write(tmp_path / "new", "report")
