from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest

from distcheck.probe.child import Conversation, Question, ask
from distcheck.probe.memory_file import memory_file

FILES = Path("/proc/self/fd")
QUESTION = Question("no.such.module", "the node", "its driver hangs")


def refused(*_args, **_more):
    raise PermissionError(errno.EPERM, "Operation not permitted")


async def conversed() -> object:
    talk = Conversation(QUESTION, 1.0, os.environ)
    try:
        return await talk.hear(str, 1.0)
    finally:
        await talk.close(1.0)


@pytest.mark.parametrize("asked", [partial(ask, QUESTION, str, 1.0), conversed])
def test_without_memory_and_temporary_folders_a_question_has_no_answer_and_leaves_no_file(monkeypatch, asked):
    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    before = sorted(FILES.iterdir())
    assert "could not start the process that queries the node" in asyncio.run(asked()).reason
    assert sorted(FILES.iterdir()) == before


@pytest.mark.parametrize("python", ["with memfd_create", "without", "refused"])
def test_a_file_in_memory_keeps_what_is_written_and_leaves_nothing(python, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if python == "without":
        monkeypatch.delattr(os, "memfd_create")
    if python == "refused":
        monkeypatch.setattr(os, "memfd_create", refused)
    descriptor = memory_file("distcheck-test")
    try:
        os.pwrite(descriptor, b"answer", 0)
        assert os.pread(descriptor, 100, 0) == b"answer"
        assert not os.get_inheritable(descriptor)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(descriptor)
