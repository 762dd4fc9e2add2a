"""For whom a stage waited, as the leader notes it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.job import Wait
from distcheck.run.record import Record


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 20.0)
    return Record(SimpleNamespace(asked=Asked("gate", ()), start=0.0, placements=()))


def test_the_last_process_and_how_far_it_was_behind(record):
    record.note_done("peers", {"leader": 1.0, "a": 1.5, "b": 3.25})
    assert record.job().waits == (Wait("peers", "b", 1.75),)


def test_the_leader_may_be_the_last_one(record):
    record.note_done("collectives", {"leader": 4.0, "a": 1.5})
    assert record.waits == (Wait("collectives", "leader", 2.5),)


def test_a_process_that_never_answered_was_waited_for_until_now(record):
    record.note_done("done", {"leader": 4.0, "a": 5.0}, ["b"])
    assert record.waits == (Wait("done", "b", 15.0, silent=True),)
    record.note_done("done", {}, ["a", "b"])
    assert record.waits[-1].seconds == 0.0


def test_alone_a_process_waits_for_no_other(record):
    record.note_done("peers", {"leader": 4.0})
    assert record.waits == ()
