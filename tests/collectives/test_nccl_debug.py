"""NCCL's log in a process of its own: what is set for it, where it goes, and that nothing of it stays behind.

NCCL's part is played with the C library: it opens NCCL_DEBUG_FILE by its name, buffers lines, and writes to it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.collectives import nccl_debug
from distcheck.collectives.nccl_debug import Debug, expanded, later, of_process, prepare, quiet, read
from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclLog

NOWHERE = Path("/nowhere")
_LINE = "node1:{pid}:9 [0] NCCL INFO {words}\n"


class Writer:
    """Opens a file and writes to it as NCCL does."""

    def __init__(self, path):
        self.libc = ctypes.CDLL(None)
        self.libc.fopen.restype = ctypes.c_void_p
        self.file = ctypes.c_void_p(self.libc.fopen(path.encode(), b"w"))
        assert self.file.value
        self.libc.setlinebuf(self.file)

    def close(self):
        self.libc.fclose(self.file)

    def __call__(self, words):
        self.libc.fputs(_LINE.format(pid=os.getpid(), words=words).encode(), self.file)


@pytest.fixture
def writer():
    opened = []

    def writer(path):
        opened.append(Writer(path))
        return opened[-1]

    yield writer
    for each in opened:
        each.close()


def descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def started(program, stdout=subprocess.PIPE, **environ):
    """Start a program in an environment of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, sys\n{program}"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(program, **more):
    """Run a program and return what it printed and wrote to stderr."""
    with started(program, **more) as process:
        said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def closed(debug):
    os.close(debug.fd)


def test_nothing_set_means_a_log_in_memory_that_is_read_back(writer):
    environ = {"HOME": "/nowhere"}
    debug = prepare(environ, NOWHERE)
    assert environ == {
        "HOME": "/nowhere",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV,NET",
        "NCCL_DEBUG_FILE": f"/proc/self/fd/{debug.fd}",
    }
    write = writer(environ["NCCL_DEBUG_FILE"])
    write("Using network IB")
    log = read(debug)
    assert isinstance(log, NcclLog)
    assert log.network == "IB"
    assert os.fstat(debug.fd).st_nlink == 0, "it has no name in any folder"
    closed(debug)


def test_a_log_to_which_nothing_was_written_is_missing():
    debug = prepare({}, NOWHERE)
    assert read(debug) == Missing(reason="NCCL wrote nothing to its log")
    closed(debug)


def test_nothing_is_written_while_something_is_timed(writer):
    environ = {}
    debug = prepare(environ, NOWHERE)
    with quiet():
        pass  # NCCL has not opened it yet
    write = writer(environ["NCCL_DEBUG_FILE"])
    line = "AllReduce: {} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}"
    write(line.format(1))
    before = len(descriptors())
    size = os.fstat(debug.fd).st_size
    with quiet():
        for _ in range(1000):
            write(line.format(2))
    assert os.fstat(debug.fd).st_size == size
    assert len(descriptors()) == before
    write(line.format(3))
    log = read(debug)
    assert isinstance(log, NcclLog)
    assert list(log.algorithms) == ["all_reduce 1", "all_reduce 3"]
    closed(debug)


def test_quiet_does_nothing_without_a_log_of_ours_or_with_other_backends(writer):
    before = descriptors()
    with quiet():
        assert descriptors() == before
    environ = {}
    debug = prepare(environ, NOWHERE)
    writer(environ["NCCL_DEBUG_FILE"])
    before = descriptors()
    with quiet(backend="gloo"):
        assert descriptors() == before
    closed(debug)


def test_a_file_that_the_user_names_stays_theirs_and_is_read(tmp_path):
    pattern = str(tmp_path / "nccl.%h.%p.txt")
    environ = {"NCCL_DEBUG": "info", "NCCL_DEBUG_FILE": pattern, "NCCL_DEBUG_SUBSYS": "^NET"}
    before = dict(environ)
    debug = prepare(environ, NOWHERE)
    assert environ == before
    path = Path(expanded(pattern))
    assert debug == Debug(path=str(path))
    path.write_text(
        _LINE.format(pid=1, words="Using network Socket") + _LINE.format(pid=os.getpid(), words="Using network IB")
    )
    log = read(debug)
    assert isinstance(log, NcclLog)
    assert log.network == "IB", "another process's line was read"
    assert path.exists()


def test_a_file_of_the_user_that_cannot_be_read_is_missing_with_the_reason(tmp_path):
    debug = prepare({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": str(tmp_path / "no" / "file")}, NOWHERE)
    log = read(debug)
    assert isinstance(log, Missing)
    assert str(tmp_path) in log.reason
    assert "No such file" in log.reason
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(read(Debug(path=str(tmp_path / "pipe"))), Missing)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/tmp/x.%h.%p", "/tmp/x.node1.77"),
        ("/tmp/100%%.%p%q", "/tmp/100%.77%q"),
        ("~/x%", "~/x%"),
    ],
)
def test_the_file_name_is_what_nccl_makes_of_it(pattern, path):
    assert expanded(pattern, "node1.example.org", 77) == path


@pytest.mark.process
def test_a_log_that_the_user_wants_to_see_reaches_standard_output_and_is_read_only_from_a_file(tmp_path):
    program = (
        "import ctypes\n"
        "from distcheck.collectives.nccl_debug import prepare, read\n"
        "debug = prepare(os.environ)\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.printf(b'node1:%d:9 [0] NCCL INFO Using network IB\\n', os.getpid())\n"
        "log = read(debug)\n"
        "print(getattr(log, 'network', ''), getattr(log, 'reason', ''), file=sys.stderr)\n"
    )
    out, err = run(program, NCCL_DEBUG="INFO")
    assert "Using network IB" in out
    assert "was left" in err
    with (tmp_path / "out").open("w") as file:
        _, err = run(program, NCCL_DEBUG="INFO", stdout=file)
    assert "Using network IB" in (tmp_path / "out").read_text()
    assert err.strip() == "IB"


def test_warnings_that_the_user_wants_to_see_are_repeated(capsys, writer):
    environ = {"NCCL_DEBUG": "WARN"}
    debug = prepare(environ, NOWHERE)
    assert environ["NCCL_DEBUG"] == "INFO"
    writer(environ["NCCL_DEBUG_FILE"])("\nnode1:1:1 [0] init.cc:1 NCCL WARN Duplicate GPU detected")
    read(debug)
    assert capsys.readouterr().err == "NCCL WARN Duplicate GPU detected\n"
    closed(debug)


def test_warnings_in_a_file_of_the_user_are_left_there():
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x"}
    debug = prepare(environ, NOWHERE)
    assert isinstance(debug, Missing)
    assert environ == {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x"}


def test_a_file_of_the_user_without_a_level_is_not_emptied(tmp_path):
    environ = {"NCCL_DEBUG_FILE": str(tmp_path / "log")}
    debug = prepare(environ, NOWHERE)
    assert environ["NCCL_DEBUG_FILE"] == f"/proc/self/fd/{debug.fd}"
    closed(debug)


def test_what_the_files_of_nccl_set_counts_as_the_users(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(f"NCCL_DEBUG=INFO\nNCCL_DEBUG_FILE={tmp_path}/log.%p\n")
    environ = {}
    assert prepare(environ, tmp_path) == Debug(path=f"{tmp_path}/log.{os.getpid()}")
    assert environ == {}


@pytest.mark.process
def test_the_log_of_a_hanging_process_is_read_from_outside():
    program = (
        "from distcheck.collectives.nccl_debug import prepare\n"
        "prepare(os.environ)\n"
        "log = open(os.environ['NCCL_DEBUG_FILE'], 'w', buffering=1)\n"
        "print('node1:1:1 [0] NCCL INFO Using network IB', file=log)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with started(program) as process:
        assert process.stdout.readline() == "ready\n"
        log = of_process(process.pid)
        assert log is not None
        assert log.network == "IB"
        process.kill()
        process.wait()
        assert of_process(process.pid) is None
    assert of_process(os.getpid()) is None


def test_the_end_of_a_long_log_is_read_and_its_middle_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(nccl_debug, "_HEAD_BYTES", 1000)
    monkeypatch.setattr(nccl_debug, "_TAIL_BYTES", 1000)
    path = tmp_path / "log"
    pid = os.getpid()
    path.write_text(
        _LINE.format(pid=pid, words="Using network IB")
        + _LINE.format(pid=pid, words="NCCL_A set by environment to 1") * 100
        + _LINE.format(pid=pid, words="NCCL_B set by environment to 2")
        + _LINE.format(pid=pid, words="NCCL_A set by environment to 1") * 100
        + _LINE.format(pid=pid, words="NCCL_C set by environment to 3")
    )
    log = read(Debug(path=str(path)))
    assert isinstance(log, NcclLog)
    assert (log.network, set(log.settings)) == ("IB", {"NCCL_A", "NCCL_C"})


@pytest.mark.process
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_rank_reports_nccls_log_and_gloo_runs_are_unchanged(backend):
    program = (
        "from distcheck.collectives import worker\n"
        "from distcheck.collectives.plan import NcclSaid, Plan, Task\n"
        f"plan = Plan({backend!r}, ('all_reduce',), (4096,), 30.0, iterations=1)\n"
        "said, before = [], dict(os.environ)\n"
        "worker.run(Task(plan, 0, 1, 0, None), said.append)\n"
        "print([type(message.log).__name__ for message in said if isinstance(message, NcclSaid)])\n"
        "print(sorted(set(os.environ) - set(before)))\n"
    )
    # CUDA is shown no GPU, so that NCCL ends before it has anything to say, wherever this runs.
    lines = run(program, CUDA_VISIBLE_DEVICES="")[0].splitlines()
    names = ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"]
    assert lines == (["[]", "[]"] if backend == "gloo" else ["['Missing']", str(names)])


def test_of_a_log_after_the_groups_of_a_mesh_only_the_warnings_count():
    world, after = (
        NcclLog(version="2.27.3", ranks=8),
        NcclLog(version="2.27.3", ranks=2, warnings=("Call to connect failed",)),
    )
    gone = Missing(reason="no log")
    assert later(world, after) == NcclLog(version="2.27.3", ranks=8, warnings=("Call to connect failed",))
    assert (later(world, gone), later(gone, after), later(gone, gone)) == (world, after, gone)
