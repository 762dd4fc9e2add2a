from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from distcheck.facts import files
from distcheck.facts.errors import UsageError, WriteError


def test_a_path_that_may_not_be_looked_at_is_a_usage_error(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    for option in ("--output", "--save"):
        with pytest.raises(UsageError, match=f"{option} {tmp_path}/job.json: Permission denied; choose another"):
            files.check_writable(tmp_path / "job.json", option)


def test_a_failed_write_leaves_no_partial_file(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(WriteError):
        files.write(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PIPE_SECONDS", 0.2)
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match=r"nothing came from it for 0\.2 s"):
        files.read(pipe, 9)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"whole",))
    writer.start()
    assert files.read(pipe, 9) == b"whole"
    writer.join()


def test_a_pipe_that_no_program_reads_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_READER_SECONDS", 0.2)
    monkeypatch.setattr(files, "_PIPE_SECONDS", 0.2)
    pipe = tmp_path / "report"
    os.mkfifo(pipe)
    helped = threading.Timer(5, lambda: os.open(pipe, os.O_RDWR))  # a wait without end ends here
    helped.start()
    with pytest.raises(
        WriteError, match=r"report could not be written: no program opened the pipe to read it within 0\.2 s"
    ):
        files.write(pipe, "x")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    helped.cancel()
    with pytest.raises(WriteError, match=r"report could not be written: nothing was read from the pipe for 0\.2 s"):
        files.write(pipe, "x" * (1 << 20))
    os.close(reader)


def test_a_pipe_whose_reader_comes_a_moment_later_is_written_to_its_end(tmp_path):
    pipe, got = tmp_path / "report", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Timer(0.3, lambda: got.append(pipe.read_bytes()))
    reader.start()
    files.write(pipe, "é" * (1 << 18))
    reader.join()
    assert got == [("é" * (1 << 18)).encode()]


def test_a_file_is_written_under_a_temporary_name_and_then_renamed(tmp_path, monkeypatch):
    opened: list[tuple[Path, str]] = []
    opens, replaces = Path.open, Path.replace

    def watched_open(path, mode="r", *args, **more):
        opened.append((path, mode))
        return opens(path, mode, *args, **more)

    def watched_replace(path, target):
        assert path.read_text() == "whole"
        assert target.read_text() == "of before"
        return replaces(path, target)

    target = tmp_path / "report"
    target.write_text("of before")
    monkeypatch.setattr(Path, "open", watched_open)
    monkeypatch.setattr(Path, "replace", watched_replace)
    files.write(target, "whole")
    ((temporary, mode),) = [(p, m) for p, m in opened if m != "r"]
    assert (temporary.parent, mode) == (tmp_path, "x")
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_planted_link_is_replaced_and_never_followed(tmp_path, monkeypatch):
    """A link in a world-writable folder, such as /tmp, leads to a file of ours."""
    precious, target = tmp_path / "precious", tmp_path / "report"
    precious.write_text("precious")
    target.symlink_to(precious)
    files.write(target, "report")
    assert (precious.read_text(), target.read_text(), target.is_symlink()) == ("precious", "report", False)
    monkeypatch.setattr(files.os, "urandom", bytes)
    guessed = tmp_path / f".report.{bytes(4).hex()}"
    guessed.symlink_to(precious)
    with pytest.raises(WriteError):
        files.write(target, "again")
    assert (precious.read_text(), target.read_text()) == ("precious", "report")
