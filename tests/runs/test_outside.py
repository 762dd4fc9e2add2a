"""What a run from outside gives its probes to do."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest
from made.jobs import healthy_job

from distcheck.facts.asked import Asked
from distcheck.facts.job import Launched, LaunchedNode
from distcheck.launch.remote.spec import Outside
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, Verdict
from distcheck.run import outside
from distcheck.run.outside import _Start
from distcheck.run.request import Request


@pytest.mark.parametrize(("engine", "hosts", "seconds"), [("ssh", 64, 20), ("ssh", 1024, 27.5), ("slurm", 1024, 20)])
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


@pytest.mark.parametrize(
    ("left", "observed", "rounds", "code"), [(30, False, 2, 0), (3, False, 1, 40), (30, True, 1, 0)]
)
def test_nodes_are_checked_without_the_bad_one_if_there_is_time_and_it_is_not_only_observed(
    monkeypatch, capsys, left, observed, rounds, code
):
    names = ("node1", "node2", "node3")
    launched = Launched("ssh", ("ssh",), tuple(LaunchedNode(name, (n,), "reported") for n, name in enumerate(names)))
    whole = msgspec.structs.replace(healthy_job(3, 1, command="gate", need=2), launched=launched)
    made = []
    bad = Finding(rule="gpu-xid-recent", severity="error", scope="node", owner="admin", nodes=("node3",), message="bad",
                  evidence={}, fix=Fix("", ()), observed=observed)  # fmt: skip
    first = Verdict("warn", 0) if observed else Verdict("node", 40)
    verdicts = [Diagnosis((bad,), (), first), Diagnosis((), (), Verdict("pass", 0))]
    monkeypatch.setattr(_Start, "round", lambda *_: made.append(1) or whole)
    monkeypatch.setattr(outside, "judge", lambda _job: verdicts.pop(0))
    launch = Outside("ssh", names, (1, 1, 1), multiplies=True, master_addr="node1", master_port=1)
    start = time.monotonic() - whole.asked.timeout_seconds + left
    result = outside.run_outside(Request(whole.asked, (), {}, start=start), launch, lambda *given: given[-1], None)
    assert (len(made), result.exit_code) == (rounds, code)
    assert ("raise --timeout" in capsys.readouterr().err) is (code == 40)
