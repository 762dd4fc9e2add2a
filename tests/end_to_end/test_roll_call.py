"""Ranks started by hand, one shell each: they meet, or the report names the missing ranks and the reason."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from real.ended import BEYOND_SECONDS
from real.waiting import until

from distcheck.facts.base import Missing
from distcheck.facts.saved import load

TABLE = ["--sizes", "64K:64K", "--iters", "3"]


def _reports(ended):
    return [json.loads(e.out) for e in ended if e.out]


def test_four_shells_meet_and_give_one_report(by_hand, port):
    ended = [r.wait() for r in by_hand("gate", [0, 1, 2, 3], 4, "--format", "json", *TABLE)]
    assert [e.code for e in ended] == [0, 0, 0, 0], [e.err for e in ended]
    assert [bool(e.out) for e in ended] == [True, False, False, False]
    report = ended[0].report
    assert [r["master"] for r in report["ranks"]] == ["listening", "reached", "reached", "reached"]
    assert report["findings"] == []
    assert {row["ranks"] for row in report["bandwidth"]} == {4}
    with socket.create_server(("127.0.0.1", port)):
        pass  # the job itself can take the port right after


def test_a_rank_that_never_comes_is_named_missing_and_so_from_the_saved_job(by_hand, distcheck, tmp_path):
    job = tmp_path / "job.json"
    words = ("--join-timeout", "4", "--format", "json", "--save", str(job), *TABLE)
    ended = [r.wait() for r in by_hand("gate", [0, 1, 2], 4, *words)]
    assert [e.code for e in ended] == [20, 20, 20]
    assert max(e.seconds for e in ended) < 20 + BEYOND_SECONDS
    report = ended[0].report
    assert report["missing_ranks"] == [3]
    assert ended[0].rules == ["env-rank-missing"]
    assert report["findings"][0]["ranks"] == [3]
    assert report["bandwidth"] == []
    assert "collective-failed" in {n["rule"] for n in report["not_checked"]}
    again = distcheck("report", str(job), "--format", "json")
    assert (again.code, again.out) == (20, ended[0].out)


def test_a_rank_that_is_started_again_before_all_are_there_is_one_rank(by_hand, start):
    (leader, killed) = by_hand("env", [0, 1], 3, "--format", "json")
    while "waiting for rank 2;" not in leader.process.stderr.readline():
        assert leader.process.poll() is None
    killed.interrupt(signal.SIGKILL)
    ended = [r.wait() for r in (leader, *by_hand("env", [1, 2], 3, "--format", "json"))]
    assert [e.code for e in ended] == [0, 0, 0], ended
    assert [row["status"] for row in ended[0].report["ranks"]] == ["ok"] * 3
    assert ended[0].rules == []


def test_a_missing_rank_0_is_named_by_one_report_of_the_others(by_hand):
    ended = [r.wait() for r in by_hand("env", [1, 2], 3, "--join-timeout", "5", "--format", "json")]
    assert [e.code for e in ended] == [20, 20]
    (report,) = _reports(ended)
    assert report["missing_ranks"] == [0]
    assert [f["rule"] for f in report["findings"]] == ["env-rank-missing"]


@pytest.mark.parametrize(("twice", "once"), [(1, 0), (0, 1)])
def test_a_duplicate_rank_beside_a_complete_world_is_found(by_hand, twice, once):
    look = ("--join-timeout", "12", "--format", "json")
    runs = by_hand("env", [twice, twice], 2, *look)
    for run in runs:
        run.begun()
    time.sleep(1.5)  # only the last process makes the world complete
    ended = [r.wait() for r in [*runs, *by_hand("env", [once], 2, *look)]]
    assert 30 in {e.code for e in ended}
    report = next(r for r in _reports(ended) if r["findings"])
    assert [f["rule"] for f in report["findings"] if f["severity"] == "error"] == ["env-rank-duplicate"]


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_taken_master_port_is_named_with_its_owner_and_the_report_covers_all_ranks(by_hand, port, tmp_path):
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    try:
        until(lambda: listens(port))
        ended = [r.wait() for r in by_hand("net", [0, 1, 2], 3, "--format", "json")]
    finally:
        server.kill()
        server.wait()
    assert [e.code for e in ended] == [30, 30, 30]
    report = ended[0].report
    assert ended[0].rules == ["net-port-in-use"]
    assert [r["rank"] for r in report["ranks"]] == [0, 1, 2]
    assert report["missing_ranks"] == []
    evidence = report["findings"][0]["evidence"]
    assert evidence["pid"] == server.pid
    assert "http.server" in evidence["command"]


def test_ranks_with_another_master_port_are_admitted_and_reported(by_hand, other_port):
    first = by_hand("env", [0], 2, "--join-timeout", "6", "--format", "json")
    second = by_hand("env", [1], 2, "--join-timeout", "6", "--format", "json", master_port=other_port)
    ended = [r.wait() for r in (*first, *second)]
    assert [e.code for e in ended] == [30, 30]
    assert ended[0].rules == ["env-master-port-differs"]


def test_two_jobs_of_one_user_do_not_mix(by_hand, other_port):
    one = by_hand("env", [0, 1], 2, "--format", "json")
    two = by_hand("env", [0, 1], 2, "--format", "json", master_port=other_port)
    ended = [r.wait() for r in (*one, *two)]
    assert [e.code for e in ended] == [0, 0, 0, 0], [e.out for e in ended]
    assert [len(r["ranks"]) for r in _reports(ended)] == [2, 2]


def test_a_malformed_rank_reports_itself_and_its_fellow_misses_it(by_hand, start, port):
    (first,) = by_hand("env", [0], 2, "--join-timeout", "3", "--format", "json")
    env = {"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    second = start("env", "--format", "json", env=env).wait()
    assert second.code == 30
    assert second.rules == ["env-not-integer"]
    assert first.wait().code == 20


def test_a_folder_of_saved_jobs_is_merged(by_hand, distcheck, tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    runs = by_hand("env", [0, 1], 2, "--format", "json", "--save", str(folder))
    first, _ = [r.wait() for r in runs]
    assert len(list(folder.iterdir())) == 2
    again = distcheck("report", str(folder), "--format", "json")
    assert again.out == first.out


def _of_nodes(start, port, ranks, saved):
    """Start ranks by hand, as a scheduler that says each one's node and LOCAL_RANK."""
    master = {"WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(
            "env", *(("--save", str(saved)) if rank == 0 else ()),
            env=master | {"RANK": str(rank), "LOCAL_RANK": str(local), "SLURMD_NODENAME": node},
        )
        for rank, (node, local) in enumerate(ranks)
    ]  # fmt: skip


def test_the_facts_of_a_node_arrive_whole_though_its_processes_share_the_work(start, port, tmp_path):
    """On node2 local rank 0 sends them, on node3, which has none, the leader asks for them."""
    ranks = [("node1", 0), ("node1", 1), ("node2", 0), ("node2", 1), ("node3", 1), ("node3", 2)]
    for running in _of_nodes(start, port, ranks, tmp_path / "job.json"):
        running.wait()
    job = load(tmp_path / "job.json")
    assert [node.name for node in job.nodes] == ["node1", "node2", "node3"]
    assert len(job.ranks) == 6
    assert not any(isinstance(node.interfaces, Missing) for node in job.nodes)
    assert not any(process.lost for process in job.processes)
