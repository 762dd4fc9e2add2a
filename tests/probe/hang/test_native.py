"""The functions of libraries: of whom they are read, and that nobody stays stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made.running import frames, job_of, rank, running, thread
from msgspec.structs import replace
from real.waiting import until

from distcheck.facts.base import Missing
from distcheck.facts.hang import Frame
from distcheck.probe.hang import native, stacks
from distcheck.probe.hang.stacks import Dump
from distcheck.report.hang import hang_table
from distcheck.rules.hang.judging import answer

WAIT = (Frame("libc.so.6", 0, "pthread_cond_wait"), Frame("libtorch_cpu.so", 0, "c10d::Work::wait"))
LINE = "/home/me/train.py:91 step"


def states(pid: int) -> set[str]:
    return {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}


@pytest.fixture
def target():
    """Return a Python process that counts lines."""
    with subprocess.Popen([sys.executable, "-c", "for line in open(0): print(line.strip(), flush=True)"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        yield process
        process.send_signal(signal.SIGCONT)


def goes_on(process) -> bool:
    process.stdin.write("on\n")
    process.stdin.flush()
    return process.stdout.readline() == "on\n"


def of(process):
    return running(replace(rank(0, LINE), pid=process.pid))


@pytest.mark.process
def test_a_stopped_rank_is_left_alone(target):
    target.send_signal(signal.SIGSTOP)
    until(lambda: states(target.pid) == {"T"})
    (seen,) = native.added(of(target), "/does/not/exist", 1.0).ranks
    assert (type(seen.native), states(target.pid)) == (Missing, {"T"})


@pytest.mark.process
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2, 0.4, 0.8])
def test_a_rank_goes_on_when_the_dump_takes_too_long(target, seconds):
    program = stacks.sampler()
    assert isinstance(program, str)
    for _ in range(3):
        native.added(of(target), program, seconds)
        assert goes_on(target)


@pytest.mark.process
def test_a_rank_that_a_killed_dump_left_stopped_is_continued(target, tmp_path):
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\nkill -STOP {target.pid}\nexec sleep 60\n")
    program.chmod(0o755)
    (seen,) = native.added(of(target), str(program), 3.0).ranks
    assert seen.native == Missing(reason="py-spy did not end in time")
    assert goes_on(target)


def test_functions_of_another_moment_are_not_kept():
    one, other = (Dump((thread(line),), native=WAIT) for line in (LINE, "/home/me/train.py:92 step"))
    assert native._native(rank(0, LINE), one) == WAIT
    assert native._native(rank(0, LINE), other) == Missing(reason="it went on meanwhile")
    assert native._native(rank(0, LINE), None).reason.startswith("a thread is stopped or in state D")


OUTPUT = b"""[{"thread_name": "MainThread", "os_thread_id": 1, "owns_gil": false, "frames": [
 {"name": "0x7f90", "filename": "/lib/libc.so.6", "module": "/lib/libc.so.6", "line": 0},
 {"name": "pthread_cond_wait", "filename": "/lib/libc.so.6", "module": "/lib/libc.so.6", "line": 0},
 {"name": "std::condition_variable::wait", "filename": "x", "module": "/lib/libstdc++.so.6", "line": 0},
 {"name": "c10d::Work::wait", "filename": "x", "module": "/torch/lib/libtorch_cpu.so", "line": 0},
 {"name": "pybind11::f<bool, c10d::Work>(x)", "filename": "x", "module": "/torch/lib/libtorch_python.so", "line": 0},
 {"name": "step", "filename": "/home/me/train.py", "module": null, "line": 91},
 {"name": "0x7f91", "filename": "/lib/libc.so.6", "module": "/lib/libc.so.6", "line": 0}]}]"""


def test_native_frames_are_kept_apart_from_python_s():
    dump = stacks.parsed(OUTPUT, 1)
    assert dump.native == WAIT
    assert [each.frames for each in dump.threads] == [frames(LINE)]


WAITING = {
    "Work.wait": (WAIT, "Work.wait"),
    ".item()": ((Frame("libcuda.so.1", 0, "cuStreamSynchronize"),), "cuda synchronize"),
    "a lock of the program": ((Frame("libc.so.6", 0, "sem_wait"),), ""),
}


@pytest.mark.parametrize("name", WAITING)
def test_native_functions_tell_what_a_rank_waits_in(name):
    functions, operation = WAITING[name]
    hang = running(*(rank(n, LINE, native=functions) for n in range(2)), rank(2, LINE))
    assert {s.operation for s in answer(hang).states[:2]} == {operation}
    table = hang_table(job_of(hang), everything=True)
    shown = {row[0]: row[table.names.index("function")] for row in table.rows}
    assert (shown["0"], shown["2"]) == (f"{functions[-1].function} ({functions[-1].file})", "-")
