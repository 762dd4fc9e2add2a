"""Named shared memory of killed ranks: removed if it is ours and unused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from distcheck.launch.local.shm_cleanup import remove, shared_by

MAP = """
import mmap, sys, time
with open(sys.argv[1], "rb+") as file:
    whole = mmap.mmap(file.fileno(), 4096)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def segment():
    path = Path(f"/dev/shm/distcheck-test-{os.getpid()}-{time.monotonic_ns()}")
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def mapped(path):
    with subprocess.Popen([sys.executable, "-c", MAP, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.process
def test_a_segment_is_found_while_its_process_lives_and_removed_after_it(segment):
    before = time.time() - 5
    with mapped(segment) as pid:
        assert segment in shared_by([pid])
        remove({segment}, before)
        assert segment.exists()  # it is in use
    assert shared_by([pid]) == set()
    remove({segment}, before)
    assert not segment.exists()


@pytest.mark.process
def test_a_segment_that_was_there_before_stays(segment):
    remove({segment}, time.time() + 5)
    assert segment.exists()


@pytest.mark.process
def test_missing_segments_are_ignored(segment):
    with mapped(segment) as pid:
        segment.unlink()
        assert segment not in shared_by([pid])
    remove({segment}, 0)
