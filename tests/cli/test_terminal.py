"""What the terminal takes: its width, colours and characters."""

import fcntl
import os
import pty
import struct
import termios
from types import SimpleNamespace

import pytest

from distcheck.cli.options import Reporting
from distcheck.cli.publish import _detail


@pytest.fixture
def locale(monkeypatch):
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def take(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return take


@pytest.fixture
def terminal():
    """A terminal of 91 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream
    os.close(ours)


def stream(encoding="utf-8", *, tty=False):
    return SimpleNamespace(isatty=lambda: tty, encoding=encoding, fileno=lambda: -1)


def test_a_table_takes_the_columns_of_the_terminal(locale, terminal):
    locale(LANG="C.UTF-8")
    assert _detail(Reporting(), terminal).width == 91
    locale(COLUMNS="77")
    assert _detail(Reporting(), terminal).width == 77


def test_a_width_that_is_no_number_or_too_small_is_not_taken(locale, terminal):
    locale(LANG="C.UTF-8", COLUMNS="wide")
    assert _detail(Reporting(), terminal).width == 120
    locale(COLUMNS="3")
    assert _detail(Reporting(), terminal).width == 40


def test_a_job_log_and_a_file_have_120_columns(locale, terminal, tmp_path):
    locale(COLUMNS="77", LANG="C.UTF-8")
    assert _detail(Reporting(), stream()).width == 120
    assert _detail(Reporting(output=tmp_path / "report"), terminal).width == 120
    assert _detail(Reporting(), None).width == 120


@pytest.mark.parametrize(
    ("variables", "plain"),
    [
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LC_ALL": "C.utf8"}, False),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({}, True),
        ({"LC_CTYPE": "C.UTF-8"}, True),  # as Python sets it itself in the C locale
    ],
)
def test_a_terminal_without_utf_8_gets_ascii(locale, variables, plain):
    locale(**variables)
    assert _detail(Reporting(), stream(tty=True)).ascii is plain
    assert _detail(Reporting(), stream()).ascii is False, "a file takes what Python writes"


def test_a_stream_that_is_not_utf_8_gets_ascii(locale, tmp_path):
    locale(LANG="C.UTF-8")
    assert _detail(Reporting(), stream("ascii")).ascii is True
    assert _detail(Reporting(), stream("iso8859-1", tty=True)).ascii is True
    assert _detail(Reporting(output=tmp_path / "report"), stream("ascii")).ascii is False
