from __future__ import annotations

import os
import threading

import pytest

from distcheck.facts import files


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.2)
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match=r"nothing came from it for 0\.2 s"):
        files.read(pipe, 9)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"whole",))
    writer.start()
    assert files.read(pipe, 9) == b"whole"
    writer.join()
