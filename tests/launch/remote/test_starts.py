"""Many logins by ssh: they begin in a window, a node that hangs delays no other, and open files suffice."""

from __future__ import annotations

import os
import resource
import time
from itertools import accumulate
from pathlib import Path

import pytest

from distcheck.facts.errors import UsageError
from distcheck.launch.remote import engine
from distcheck.launch.remote.spec import Command
from distcheck.probe import open_files

SSH = """#!/bin/sh
# Logs when a login begins and when it has succeeded, then stays until its standard input ends.
eval "host=\\${$(($# - 1))}"
echo + >> FOLDER/log
case $host in hangs*) exec sleep 600 ;; silent*) exec cat > /dev/null ;; esac
sleep 0.05
echo - >> FOLDER/log
echo in
exec cat > /dev/null
"""
LATEST_SECONDS = 60


class Listener:
    """Wishes `wish` once this many hosts are in, or after some seconds; ends everything at last."""

    def __init__(self, number: int, wish: engine.Wish = "stop", seconds: float = LATEST_SECONDS) -> None:
        self.came: list[str] = []
        self.codes: dict[str, int] = {}
        self._number, self._wish, self._at = number, wish, time.monotonic() + seconds

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        assert (words, error) == (b"in", False)
        self.came.append(key)

    def ended(self, key: str, code: int) -> None:
        self.codes[key] = code

    def wish(self) -> engine.Wish:
        if time.monotonic() >= self._at + LATEST_SECONDS:
            return "end"
        return self._wish if len(self.came) >= self._number or time.monotonic() >= self._at else "go on"


@pytest.fixture
def log(monkeypatch, tmp_path) -> Path:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.replace("FOLDER", str(tmp_path)))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "log"


@pytest.fixture
def window(monkeypatch):
    def resize(places: int, hold_seconds: float) -> None:
        monkeypatch.setattr(engine, "PLACES", places)
        monkeypatch.setattr(engine, "HOLD_SECONDS", hold_seconds)

    return resize


def run(listener: Listener, *hosts: str) -> Listener:
    commands = [Command(key=host, line="probe", stdin=b"assignment\n") for host in hosts]
    engine.run(commands, listener, listener.wish, connect_seconds=2, environment={})
    return listener


def named(number: int) -> list[str]:
    return [f"node{n}" for n in range(number)]


@pytest.mark.process
def test_no_more_logins_begin_at_once_than_there_are_places_and_all_stay(log, window):
    window(3, LATEST_SECONDS)
    hosts = named(12)
    listener = run(Listener(len(hosts)), *hosts)
    # None ends before all are in: a window of connections would never get so far.
    assert sorted(listener.came) == sorted(hosts)
    assert listener.codes == dict.fromkeys(hosts, 0)
    assert max(accumulate(1 if line == "+" else -1 for line in log.read_text().split())) <= 3


@pytest.mark.process
def test_nodes_that_hang_hold_their_places_only_for_a_while(log, window):
    window(2, 0.2)
    began = time.monotonic()
    listener = run(Listener(4, "end"), "hangs1", "hangs2", *named(4), "hangs3")
    assert time.monotonic() - began < LATEST_SECONDS
    assert sorted(listener.came) == named(4)
    assert log.read_text().count("+") == 7


@pytest.mark.process
def test_after_stop_no_further_login_begins(log, window):
    window(1, LATEST_SECONDS)
    listener = run(Listener(1, seconds=1.0), "silent1", "node1")
    assert (listener.came, listener.codes) == ([], {"silent1": 0})
    assert log.read_text().split() == ["+"]


@pytest.mark.process
def test_the_limit_of_open_files_is_raised_for_the_logins_and_restored(log):
    hosts = named(24)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 32
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        listener = run(Listener(len(hosts)), *hosts)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(listener.came) == sorted(hosts)


def test_too_low_a_hard_limit_is_reported_before_anything_starts(monkeypatch):
    monkeypatch.setattr(open_files, "raise_limit", lambda _wanted: (1024, None))
    with pytest.raises(UsageError, match=r"400 nodes need 1264 open files on this machine, and its limit is 1024"):
        run(Listener(400), *named(400))


def test_the_last_login_begins_soon_whatever_the_others_do():
    assert [engine.last_start_seconds(n) for n in (1, 64, 65, 1024)] == [0, 0, 0.5, 7.5]
