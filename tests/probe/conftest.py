"""A Python that answers no question, for tests of what the probes then report."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    """Let a shell script be the Python that asks the questions; it is returned."""

    def instead(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return path

    return instead
