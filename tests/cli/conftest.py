"""The command line in this process."""

from __future__ import annotations

import sys

import pytest

from distcheck.cli.main import main


@pytest.fixture
def ended(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; return the exit code, standard output and standard error."""

    def ended(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["distcheck", *words])
        with pytest.raises(SystemExit) as exited:
            main()
        return exited.value.code, *capsys.readouterr()

    return ended
