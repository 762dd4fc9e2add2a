"""What a run from outside gives its probes to do."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from distcheck.facts.asked import Asked
from distcheck.launch.remote.spec import Outside
from distcheck.run.outside import _Start


@pytest.mark.parametrize(("engine", "hosts", "seconds"), [("ssh", 64, 20), ("ssh", 1024, 37.5), ("slurm", 1024, 20)])
def test_probes_wait_longer_for_each_other_if_their_logins_begin_in_turn(engine, hosts, seconds):
    asked = Asked("env", ("launch", "environment", "meeting"), timeout_seconds=60, join_timeout_seconds=20)
    request = SimpleNamespace(
        asked=asked, start=time.monotonic(), connect_seconds=3.0, iterations=None, time_limit_seconds=None, quiet=True
    )
    launch = Outside(
        engine=engine,
        hosts=tuple(f"node{n}" for n in range(hosts)),
        ranks_by_host=(8,) * hosts,
        multiplies=True,
        master_addr="node0",
        master_port=29500,
    )
    given = _Start(request, SimpleNamespace())._assignment(launch).asked
    assert given.join_timeout_seconds == seconds
    assert given.looks == ("environment", "meeting")
    assert 50 < given.timeout_seconds < 60
