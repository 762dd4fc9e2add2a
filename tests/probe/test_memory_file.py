from __future__ import annotations

import os
import tempfile

import pytest

from distcheck.probe.memory_file import memory_file


@pytest.mark.parametrize("python", ["with memfd_create", "without"])
def test_a_file_in_memory_keeps_what_is_written_and_leaves_nothing(python, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if python == "without":
        monkeypatch.delattr(os, "memfd_create")
    descriptor = memory_file("distcheck-test")
    try:
        os.pwrite(descriptor, b"answer", 0)
        assert os.pread(descriptor, 100, 0) == b"answer"
        assert not os.get_inheritable(descriptor)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(descriptor)
