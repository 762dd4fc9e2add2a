"""When each process began each stage, on one clock."""

import time
from types import SimpleNamespace

import msgspec
import pytest
from made import reported

from distcheck.facts.asked import Asked
from distcheck.rollcall.protocol import Report
from distcheck.run.record import Record


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.seconds)
    return now


def began(record, uid):
    return next(p.began_seconds for p in record.job().processes if p.uid == uid)


def test_stages_of_a_follower_are_counted_from_the_leaders_start(clock):
    job = reported.build(2, 1)
    leader, follower = (msgspec.structs.replace(p, began_seconds={}) for p in job.processes)
    record = Record(SimpleNamespace(asked=Asked("gate", ()), start=1000.0, placements=()))
    record.uid, record.node, record.process = leader.uid, job.nodes[0], leader
    clock.seconds = 1000.5
    record.begin("meeting")
    own = {"started": 0.0, "meeting": 0.25}
    follower = msgspec.structs.replace(follower, began_seconds=own)
    record.take_reports([Report(node=job.nodes[1], process=follower, ranks=(), peer_doors=(), clock_seconds=0.0)])
    record.note_arrivals({follower.uid: 1003.0}, opened_at=1000.5)
    assert began(record, leader.uid) == {"started": 0.0, "meeting": 0.5}
    assert began(record, follower.uid) == {"started": 2.75, "meeting": 3.0}
    clock.seconds = 1004.0
    record.begin("peers", [follower.uid, "unknown"])
    assert began(record, leader.uid)["peers"] == began(record, follower.uid)["peers"] == 4.0
