"""What a run adds to the history of its nodes."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest
from made.jobs import healthy_job

from distcheck.facts.base import Missing
from distcheck.facts.history import SCHEMA, History, Noted, PastRun
from distcheck.facts.job import Collectives, Launched, LaunchedNode, LeftOut, Measurement
from distcheck.launch.remote.spec import Outside
from distcheck.probe import history as folder
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, Verdict
from distcheck.run import history, outside
from distcheck.run.context import Session
from distcheck.run.request import Request

NOW = 1_795_000_000.4


def finding(rule, *nodes, severity="error", scope="node", confirmed=True, **more):
    return Finding(
        rule=rule, severity=severity, scope=scope, confirmed=confirmed, nodes=nodes, message="m", fix=Fix("f"), **more
    )


def runs(job, *findings, verdict="node"):
    diagnosis = Diagnosis(findings, (), Verdict(verdict, 40))
    found = {}
    for name, text in history.lines(job, diagnosis, NOW).items():
        assert len(text.encode()) < 4096
        assert "\n" not in text
        found[name] = msgspec.json.decode(text, type=PastRun)
        assert found[name].node == name
    return found


def test_each_node_gets_a_line_with_the_findings_that_name_it():
    job = healthy_job(3, 2, command="gate")
    found = runs(
        job,
        finding("gpu-xid", "node2", scope="gpu"),
        finding("host-nofile", "node2", "node3", severity="warning"),
        finding("net-x", "node1", severity="info"),
    )
    assert list(found) == ["node1", "node2", "node3"]
    assert {name: run.failures for name, run in found.items()} == {"node1": (), "node2": ("gpu-xid",), "node3": ()}
    assert found["node1"].findings == ()
    assert found["node2"].findings == (
        Noted("gpu-xid", "error", "gpu", confirmed=True),
        Noted("host-nofile", "warning", "node", confirmed=True),
    )
    run = found["node3"]
    assert (run.schema, run.time, run.run, run.command, run.verdict) == (SCHEMA, 1_795_000_000, "run", "gate", "node")
    assert run.torch == "2.13.0"


def test_what_is_only_observed_is_noted_as_such_on_the_nodes_that_were_spared():
    found = runs(healthy_job(3, 2), finding("gpu-xid", "node2", "node3", observed=False, spared=("node2",)))
    assert {name: (run.failures, run.spared) for name, run in found.items()} == {
        "node1": ((), ()), "node2": (("gpu-xid",), ("gpu-xid",)), "node3": (("gpu-xid",), ()),
    }  # fmt: skip


def test_a_node_that_never_reported_and_one_that_was_left_out_have_lines_too():
    launched = Launched(
        "ssh", ("ssh",), (LaunchedNode("node1", (0,), "reported"), LaunchedNode("node9", (2,), "silent"))
    )
    job = msgspec.structs.replace(
        healthy_job(1, 2),
        launched=launched,
        left_out=(LeftOut("node4", ("gpu-xid",), "w", confirmed=True), LeftOut("node5", ("gpu-x",), "w")),
    )
    excluded = finding("launch-node-left-out", "node4", severity="warning", excludes=True)
    found = runs(job, finding("launch-probe-silent", "node9", confirmed=False), excluded)
    assert list(found) == ["node1", "node9", "node4", "node5"]
    assert found["node4"].failures == ("gpu-xid",)
    assert found["node5"].failures == found["node9"].failures == ()
    assert [noted.rule for noted in found["node9"].findings] == ["launch-probe-silent"]


def test_the_figures_are_in_the_line_of_rank_0s_node_and_the_largest_sizes_fit():
    ran = tuple(
        Measurement(op, 1 << power, "float32", 5, (1e-3, 3e-3, 2e-3, 2e-3))
        for op in ("all_reduce", "broadcast", "all_gather")
        for power in range(10, 40)
    )
    job = msgspec.structs.replace(healthy_job(2, 2), collectives=Collectives("gloo", measurements=ran))
    found = runs(job, *(finding(f"gpu-{'x' * 40}-{n}", "node1") for n in range(40)))
    kept = found["node1"].figures
    assert 9 <= len(kept) < len(ran)
    assert found["node2"].figures == {}
    (name, value), *_ = kept.items()
    assert name.startswith(f"all_reduce float32 {1 << 39} world ")
    assert value == pytest.approx((1 << 39) / 1e9 / 2e-3 * 1.5, rel=1e-4)
    assert len(found["node1"].findings) == 16


@pytest.mark.parametrize("reason", ["not met", "unread"])
def test_a_run_that_did_not_meet_is_not_recorded_and_an_unreadable_folder_is_not_asked_again(
    monkeypatch, capsys, reason
):
    def asked(*_args):
        raise AssertionError

    monkeypatch.setattr(folder, "append", asked)
    changes = {"met": False} if reason == "not met" else {"history": Missing(reason="/h did not answer")}
    job = msgspec.structs.replace(healthy_job(), **changes)
    asyncio.run(history.add("/h", job, Diagnosis((), (), Verdict("pass", 0)), 60))
    unread = "distcheck: warning: --history: this run is not recorded for every node: /h did not answer\n"
    assert capsys.readouterr().err == ("" if reason == "not met" else unread)


@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_a_warning_that_cannot_be_printed_ends_no_run_and_is_not_on_stdout(monkeypatch, capsys, stderr):
    job = msgspec.structs.replace(healthy_job(), history=Missing(reason="/h did not answer"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", None if stderr == "closed" else SimpleNamespace(write=full, flush=full))
    asyncio.run(history.add("/h", job, Diagnosis((), (), Verdict("pass", 0)), 60))
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def shared(monkeypatch):
    """Record what is asked of the shared folder instead of asking."""
    asked = SimpleNamespace(read=[], written=[])

    async def read(place, nodes, _seconds):
        asked.read.append((place, tuple(nodes)))
        return History(place)

    async def append(place, lines, _seconds):
        asked.written.append((place, {name: msgspec.json.decode(text, type=PastRun) for name, text in lines.items()}))
        return ""

    monkeypatch.setattr(folder, "read", read)
    monkeypatch.setattr(folder, "append", append)
    return asked


def test_from_outside_the_starter_reads_and_writes_and_a_node_without_which_need_is_met_has_failed(monkeypatch, shared):
    launched = Launched("ssh", ("ssh",), tuple(LaunchedNode(f"node{n}", (n - 1,), "reported") for n in (1, 2, 3)))
    whole = msgspec.structs.replace(healthy_job(3, 1, command="gate", need=2), launched=launched)
    rest = msgspec.structs.replace(healthy_job(2, 1, command="gate", need=2), launched=launched)
    rounds = iter([whole, rest])
    bad = Diagnosis((finding("gpu-xid-recent", "node3", scope="gpu"),), (), Verdict("node", 40))
    well = Diagnosis((), (), Verdict("pass", 0))
    monkeypatch.setattr(outside._Start, "round", lambda *_: next(rounds))
    monkeypatch.setattr(outside, "judge", lambda job: bad if len(job.nodes) == 3 else well)
    launch = Outside(
        "ssh",
        ("node1-data", "node2-data", "node3-data"),
        (1, 1, 1),
        multiplies=True,
        master_addr="node1",
        master_port=1,
    )
    request = Request(whole.asked, (), {}, start=time.monotonic(), history="/h")
    result = outside.run_outside(request, launch, lambda _job, _diagnosis, code: code, None)
    assert shared.read == [("/h", ("node1", "node2", "node3"))]
    assert (result.exit_code, result.job.history) == (0, History("/h"))
    ((place, written),) = shared.written
    assert place == "/h"
    failed = {"node1": (), "node2": (), "node3": ("gpu-xid-recent",)}
    assert {name: run.failures for name, run in written.items()} == failed


@pytest.mark.parametrize("interrupted", [None, signal.SIGTERM])
def test_a_run_that_was_interrupted_is_not_recorded(shared, interrupted):
    job = healthy_job()
    request = Request(job.asked, (), {}, start=time.monotonic(), history="/h")
    run = Session(request, lambda _job, _diagnosis, code: code, None)
    run.interrupted = interrupted
    asyncio.run(run.deliver(job, Diagnosis((), (), Verdict("pass", 0)), 0))
    assert len(shared.written) == (interrupted is None)
