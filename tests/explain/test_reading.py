"""Logs that are pipes: read as their writer writes them, and never waited for without one."""

from __future__ import annotations

import os
import threading
import time

import pytest

from distcheck.explain import reading
from distcheck.explain.answer import explained
from distcheck.explain.flight.answer import flight_explained
from distcheck.facts import files
from distcheck.facts.errors import UsageError

NO_GPU = b"RuntimeError: No CUDA GPUs are available\n"


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_WRITER_SECONDS", 0.1)
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.1)
    os.mkfifo(tmp_path / "trace_rank_0")
    return tmp_path / "trace_rank_0"


def test_a_pipe_that_no_program_writes_to_is_a_usage_error_and_not_waited_for(pipe):
    with pytest.raises(UsageError, match=r"--log .*trace_rank_0: no program writes to this pipe \(waited 0.1 s\)"):
        explained([pipe])
    with pytest.raises(UsageError, match=r"--flight .*trace_rank_0: nothing came from it for 0.1 s"):
        flight_explained([pipe], [])


def test_a_pipe_is_read_to_its_end_however_long_its_writer_pauses(pipe):
    def write():
        with pipe.open("wb") as file:
            time.sleep(0.3)
            file.write(b"fine\n" * 40_000 + NO_GPU[:9])
            file.flush()
            time.sleep(0.3)
            file.write(NO_GPU[9:])

    writer = threading.Thread(target=write)
    writer.start()
    (cause, *_) = explained([pipe]).causes
    writer.join()
    assert (cause.line, cause.text) == (40_001, NO_GPU.decode().strip())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_log_that_powershell_wrote_is_read(tmp_path, encoding):
    path = tmp_path / "job.log"
    text = "fine\r\n" * 400_000 + NO_GPU.decode()
    path.write_bytes(("\ufeff" * (encoding != "utf-16") + text).encode(encoding) + b"\x00")  # cut in a character
    (cause, *_) = explained([path]).causes
    assert (cause.line, cause.text) == (400_001, NO_GPU.decode().strip())


LATER = "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered"
FIRST = "[rank3]: RuntimeError: No CUDA GPUs are available"


@pytest.mark.parametrize(
    "line",
    [
        '{"log":"%s\\n","stream":"stderr","time":"2026-11-28T07:00:0%d.123456789Z"}\n',
        '{"log":"%s\\n","stream":"stderr","attrs":{"tag":"job"},"time":"2026-11-28T07:00:0%d.123456789Z"}\n',
    ],
)
def test_the_files_in_which_docker_keeps_the_output_of_containers_are_read(tmp_path, line):
    """The times in front of the lines order them."""
    path = tmp_path / "c0ffee-json.log"
    path.write_text(line % ("fine: \\u003c3", 1) + line % (LATER, 9) + line % (FIRST, 4) + '{"log":"cut')
    (cause, *_) = explained([path]).causes
    assert (cause.rank, cause.line, cause.text) == (3, 3, f"2026-11-28T07:00:04.123456789Z {FIRST}")


def test_the_files_in_which_a_kubelet_keeps_the_output_of_containers_are_read(tmp_path):
    path = tmp_path / "0.log"
    path.write_text("".join(f"2026-11-28T07:00:0{s}.123456789Z stderr F {t}\n" for t, s in ((LATER, 9), (FIRST, 4))))
    (cause, *_) = explained([path]).causes
    assert (cause.rank, cause.line) == (3, 2)
