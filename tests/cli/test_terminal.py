"""What the terminal takes: its width, colours and characters."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from distcheck.cli.options import Reporting
from distcheck.cli.publish import _detail, as_shown


@pytest.fixture
def locale(monkeypatch):
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "COLUMNS", "NO_COLOR", "TERM", "OMPI_COMM_WORLD_RANK"):
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


def test_the_terminal_that_open_mpi_gives_a_rank_is_none(locale, terminal):
    locale(LANG="C.UTF-8")
    assert _detail(Reporting(), terminal).color is True
    locale(OMPI_COMM_WORLD_RANK="0", LANG="C")
    assert (_detail(Reporting(), terminal).color, _detail(Reporting(), terminal).width) == (False, 120)
    assert as_shown("…", terminal) == "…", "a file takes what Python writes"


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
    assert as_shown("…", stream(tty=True)) == ("..." if plain else "…")
    assert as_shown("…", stream()) == "…", "a file takes what Python writes"


def test_text_is_shown_in_ascii_only_where_it_must_be(locale):
    locale(LANG="C.UTF-8")
    assert as_shown("é 😀 …", stream()) == "é 😀 …"
    for other in (stream("ascii"), stream("iso8859-1"), stream("iso8859-1", tty=True)):
        assert as_shown("é 😀 …", other) == r"\u00e9 \ud83d\ude00 ..."
    assert as_shown("plain\n", stream("ascii")) == "plain\n"


PLAIN = ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.process
@pytest.mark.parametrize("variables", PLAIN)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["--log", "job.log"], 0),
        (["--log", "job.log", "--format", "json"], 0),
        (["--log", "job.log", "--format", "markdown"], 0),
        (["--flight", "dumps"], 20),
    ],
)
def test_explain_is_printed_where_stdout_is_not_utf_8(tmp_path, variables, words, code):
    (tmp_path / "job.log").write_bytes("é: RuntimeError: No CUDA GPUs are available 😀\n".encode())
    (tmp_path / "dumps").mkdir()
    dump = {"version": "2.4", "rank": 0, "entries": [], "pg_config": {"0": {"name": "é", "ranks": "[0]"}}}
    (tmp_path / "dumps" / "rank_0").write_text(json.dumps(dump))
    done = subprocess.run(
        [sys.executable, "-m", "distcheck", "explain", *words],
        env=os.environ | variables,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, b"")
    assert done.stdout.isascii()
    if "json" in words:
        assert "é: RuntimeError: No CUDA GPUs are available 😀" in json.loads(done.stdout)["causes"][0]["text"]


@pytest.mark.process
@pytest.mark.parametrize("variables", PLAIN)
@pytest.mark.parametrize("words", [("gate", "--help"), ("--help",), ("env", "--nproc", "1", "--legend")], ids=" ".join)
def test_help_and_a_report_as_text_are_in_ascii_where_stdout_is_not_utf_8(variables, words):
    command = [sys.executable, "-m", "distcheck", *words]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.isascii()) == (0, b"", True)


@pytest.mark.process
@pytest.mark.parametrize("output", ["report.html", "/dev/stdout", ""])
def test_a_report_is_in_utf_8_whatever_the_locale(tmp_path, output):
    words = ["env", "--nproc", "1", "--format", "html", "--save", "job.json", *(["--output", output] if output else [])]
    done = subprocess.run(
        [sys.executable, "-m", "distcheck", *words],
        env=os.environ | PLAIN[1] | {"NCCL_NOTE": "\xe9"},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    report = done.stdout or (tmp_path / output).read_bytes()
    assert "✓" in report.decode("utf-8")
    assert "NCCL_NOTE" in (tmp_path / "job.json").read_text("utf-8")
