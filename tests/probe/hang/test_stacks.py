"""What py-spy prints in, stacks out: the main thread, and no value of a variable."""

from __future__ import annotations

import json
import os
import stat
import sys
import time

import pytest

from distcheck.facts.base import Missing
from distcheck.probe.hang import stacks

SPAWN = "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py"


def frame(name, filename="/home/me/train.py", line=7, **variables):
    return {
        "name": name,
        "filename": filename,
        "line": line,
        "locals": [{"name": n, "repr": v} for n, v in variables.items()],
    }


def dumped(*threads):
    fields = ("thread_name", "os_thread_id", "frames")
    return json.dumps([dict(zip(fields, thread, strict=True)) for thread in threads]).encode()


MAIN = {
    "by its number": (("worker", 8, [frame("a")]), ("main", os.getpid(), [frame("b")])),
    "by its name": (("worker", None, [frame("a")]), ("MainThread", None, [frame("b")])),
    "by its first frame": ((None, None, [frame("a"), frame("run")]), (None, None, [frame("b"), frame("<module>")])),
}


@pytest.mark.parametrize("how", MAIN)
def test_the_main_thread_need_not_be_the_first(how):
    threads = stacks.parsed(dumped(*MAIN[how]), os.getpid()).threads
    assert [t.frames[0].function for t in threads if t.main] == ["b"]


def test_only_the_number_of_a_spawned_child_is_read():
    secret = frame("load", token="'hf_secret'")
    dump = stacks.parsed(dumped(("MainThread", None, [secret, frame("_wrap", SPAWN, i="2", args="(1,)")])), 1)
    assert dump.spawned == 2
    assert "secret" not in repr(dump)


@pytest.mark.parametrize("output", [b"", b"[]", b"{", b'[{"frames": 3}]', b"\xff"])
def test_what_is_no_dump_is_missing(output):
    assert isinstance(stacks.parsed(output, 1).threads, Missing)


@pytest.fixture
def program(tmp_path, monkeypatch):
    def written(text):
        path = tmp_path / "py-spy"
        path.write_text(f"#!{sys.executable}\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv(stacks.VARIABLE, str(path))
        return stacks.sampler()

    return written


@pytest.mark.process
def test_a_dump_that_does_not_end_is_ended(program):
    start = time.monotonic()
    found = stacks.dumps(program("import time; time.sleep(60)"), [1, 2], 0.5)
    assert [dump.threads.reason for dump in found.values()] == ["py-spy did not end in time"] * 2
    assert time.monotonic() - start < 20


@pytest.mark.process
def test_it_never_blocks_the_process_and_its_error_is_the_reason(program):
    found = stacks.dumps(
        program(
            "import sys; print(*sys.argv[1:]); sys.exit('Permission Denied' if '--nonblocking' in sys.argv else 0)"
        ),
        [7],
        9,
    )
    assert found[7].threads.reason == "py-spy: Permission Denied"


@pytest.mark.process
def test_a_process_that_runs_and_may_not_be_read_needs_permission(program):
    said = "Error: Failed to get process executable name. Check that the process is running."
    found = stacks.dumps(program(f"import sys; sys.exit({said!r})"), [os.getpid(), 1 << 30], 9)
    assert found[os.getpid()].threads.reason == "py-spy: Permission Denied"
    assert found[1 << 30].threads.reason.endswith("Check that the process is running.")


def test_a_sampler_that_is_not_there_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv(stacks.VARIABLE, str(tmp_path / "none"))
    assert isinstance(stacks.sampler(), Missing)
