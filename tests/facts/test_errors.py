"""Errors that come from a limit of the process name it, with the command that raises it."""

from __future__ import annotations

import resource

import pytest

from distcheck.facts.errors import exhausted, processes, unstarted

FILES, THREADS = OSError(24, "Too many open files"), RuntimeError("can't start new thread")


@pytest.fixture
def limits(monkeypatch):
    return lambda soft, hard: monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FILES, "the limit of open files (ulimit -n) is 6; raise it with: ulimit -n 65536"),
        (ImportError("libx.so: cannot open shared object file: Too many open files"), "ulimit -n 65536"),
        (THREADS, "the limit of processes and threads (ulimit -u) is 6; raise it with: ulimit -u unlimited"),
    ],
)
def test_the_limit_and_the_command_that_raises_it_are_named(limits, error, text):
    limits(6, 4096)
    assert text in exhausted(error)
    assert "administrator" not in exhausted(error)
    limits(6, 6)
    assert exhausted(error).endswith("(an administrator must first raise the hard limit of 6)")


def test_a_container_may_limit_processes_where_the_user_is_not_limited(limits):
    limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert "(ulimit -u) is unlimited" in processes()
    assert "docker run --pids-limit=-1" in processes()


def test_a_process_that_could_not_be_started_names_the_limit_or_the_error(limits):
    limits(6, 4096)
    assert unstarted(BlockingIOError(11, "Resource temporarily unavailable")) == processes()
    assert unstarted(FILES) == exhausted(FILES)
    assert unstarted(OSError(12, "Cannot allocate memory")) == "no process could be started: Cannot allocate memory"


def test_without_the_limit_itself_the_command_remains(monkeypatch):
    def refused(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(resource, "getrlimit", refused)
    assert exhausted(FILES) == "the limit of open files is reached; raise it with: ulimit -n 65536"


@pytest.mark.parametrize(
    "error", [OSError(2, "No such file"), ImportError("no module x"), RuntimeError("x"), KeyError()]
)
def test_any_other_error_is_of_no_limit(error):
    assert exhausted(error) == ""
