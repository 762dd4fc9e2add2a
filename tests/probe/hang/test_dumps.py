"""Dumps of torch's Flight Recorder: where a rank wrote one, and since when it counts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from distcheck.probe.hang import dumps
from distcheck.probe.hang.processes import ProcessTable


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Return the dump that is found of rank 3 with these variables, if it is this process."""

    def of(**environ):
        table = ProcessTable()
        monkeypatch.setattr(table, "environment", lambda _: {"HOME": str(tmp_path), **environ})
        seen = dumps.dump_of(table, os.getpid(), 3)
        return seen and seen.path.removeprefix(f"{tmp_path}/")

    return of


def written(path, seconds_ago=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"dump")
    os.utime(path, (time.time() - seconds_ago,) * 2)


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ("fr_3", {"TORCH_FR_DUMP_TEMP_FILE": "{}/fr_"}),
        ("fr_3", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{}/fr_"}),
        (".cache/torch/comm_lib_trace_rank_3", {}),
        ("cache/torch/nccl_trace_rank_3", {"XDG_CACHE_HOME": "{}/cache"}),
    ],
)
def test_a_dump_is_where_torch_writes_it(file, environ, found, tmp_path):
    environ = {name: value.format(tmp_path) for name, value in environ.items()}
    assert found(**environ) is None
    written(tmp_path / file)
    assert found(**environ) == file


def test_a_dump_of_an_earlier_job_and_an_empty_one_are_none(found, tmp_path):
    path = tmp_path / ".cache/torch/comm_lib_trace_rank_3"
    written(path, seconds_ago=1e6)
    assert found() is None
    path.write_bytes(b"")
    assert found() is None


def test_a_file_of_a_container_is_found_through_its_root(monkeypatch):
    assert dumps.file_of(os.getpid(), "/tmp/x1") == Path("/tmp/x1")
    own = str(Path("/proc/self/ns/mnt").readlink())
    monkeypatch.setattr(dumps.os, "readlink", lambda path: own if "self" in path else "mnt:[1]")
    assert dumps.file_of(os.getpid(), "/tmp/x1") == Path(f"/proc/{os.getpid()}/root/tmp/x1")
    monkeypatch.setattr(dumps, "remote_mount", lambda path, pid: (path, pid) == ("/tmp/x1", os.getpid()))
    with pytest.raises(TimeoutError):
        dumps.file_of(os.getpid(), "/tmp/x1")
