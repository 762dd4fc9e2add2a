"""Followers that fail in the middle of a run, and calls that block: bounded, noted, and never a pass."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from real.ended import STARTING_SECONDS
from real.waiting import until

from distcheck.facts.placement import Placement
from distcheck.probe import host
from distcheck.probe.own import process_facts, rank_facts
from distcheck.rollcall import client, identity
from distcheck.rollcall.protocol import AskNode, Bye, Hello, Here, LastCall, PeerDoor, PeerReport, Report, Roster, Start

TABLE = ["--sizes", "64K:64K", "--iters", "3"]


class Script:
    """A follower that does only what a test says."""

    def __init__(self, mark: str, port: int, rank: int, world_size: int) -> None:
        place = Placement(
            rank=rank, world_size=world_size, master_addr="127.0.0.1", master_port=port, launcher="by hand"
        )
        self.job = identity.job_key({"DISTCHECK_TOKEN": mark}, place)
        self.secret = identity.job_secret({"DISTCHECK_TOKEN": mark})
        self.port = port
        node = host.collect(dict(os.environ))
        uid = f"scripted {rank}"
        process = msgspec.structs.replace(process_facts(uid, node), stage="meeting")
        self.report = Report(node, process, (rank_facts(uid, node, place, {}),), (PeerDoor(uid, "127.0.0.1", 1),))
        self.hello = Hello(
            nonce="",
            job=identity.public_key(self.job),
            master=f"127.0.0.1:{port}",
            uid=uid,
            ranks=(rank,),
            world_size=world_size,
            seconds_left=60,
        )
        self.code: int | None = None
        self.came_in = asyncio.Event()

    async def run(self, until: type, then: str) -> None:
        """Behave until a message of this type comes, then be silent, leave, or (any other word) go on."""
        doors = client.doors(["127.0.0.1"], self.port, self.job)
        attendance = await client.attend(doors, self.hello, seconds=30, connect_seconds=3, secret=self.secret)
        connection = attendance.connection
        assert connection is not None, attendance.attempts
        leaves_out = "what nobody else sees" if until is AskNode else ""
        connection.say(msgspec.structs.replace(self.report, brief=leaves_out))
        self.came_in.set()
        while True:
            try:
                word = await connection.hear()
            except (EOFError, OSError):
                return
            if isinstance(word, until) and then == "leave":
                connection.writer.close()
                return
            if isinstance(word, until) and then == "be silent":
                continue
            if isinstance(word, until) and then == "be slow":
                await asyncio.sleep(5)
            match word:
                case Roster():
                    connection.say(PeerReport(()))
                case LastCall():
                    connection.say(Here())
                case Bye():
                    self.code = word.exit_code
                    connection.writer.close()
                    return


@pytest.mark.parametrize(
    ("command", "until", "stage", "then"),
    [
        ("net", Roster, "peers", "leave"),
        ("env", LastCall, "meeting", "be silent"),
        ("env", AskNode, "meeting", "be silent"),
        ("gate", Roster, "peers", "be silent"),
    ],
)
def test_a_follower_lost_before_the_verdict_is_never_a_pass(by_hand, mark, port, command, until, stage, then):
    (first,) = by_hand(command, [0], 2, "--format", "json", "--timeout", "30", "--connect-timeout", "1")
    asyncio.run(Script(mark, port, 1, 2).run(until, then))
    ended = first.wait()
    assert ended.code == 20, ended
    assert "probe-process-lost" in ended.rules
    found = ended.finding("probe-process-lost")
    assert found["ranks"] == [1]
    assert ended.report["ranks"][1]["stage"] == stage
    assert ended.report["bandwidth"] == []
    assert all(line.startswith("distcheck: ") for line in ended.err.splitlines()), ended.err
    assert ended.seconds < 20 + STARTING_SECONDS


def test_a_follower_that_answers_slowly_is_not_lost(by_hand, mark, port):
    (first,) = by_hand("env", [0], 2, "--format", "json", "--timeout", "30")
    follower = Script(mark, port, 1, 2)
    asyncio.run(follower.run(LastCall, "be slow"))
    ended = first.wait()
    assert (ended.code, ended.rules, follower.code) == (0, [], 0), ended


def test_only_a_follower_lost_in_the_collectives_is_named(by_hand, mark, port):
    (first,) = by_hand("bandwidth", [0], 2, "--format", "json", "--timeout", "14", *TABLE)
    asyncio.run(Script(mark, port, 1, 2).run(Start, "be silent"))
    ended = first.wait()
    assert ended.code == 20, ended
    errors = [(f["rule"], f["ranks"]) for f in ended.report["findings"] if f["severity"] == "error"]
    assert errors == [("collective-stalled", [1])]
    assert ended.seconds < 19 + STARTING_SECONDS


def test_all_processes_of_a_roll_call_exit_with_the_same_code(by_hand, mark, port):
    (first,) = by_hand("env", [0], 3, "--format", "json", "--join-timeout", "3")
    follower = Script(mark, port, 1, 3)
    asyncio.run(follower.run(int, "go on"))
    assert first.wait().code == follower.code == 20


def test_a_terminated_leader_ends_all_followers(by_hand, mark, port):
    (first,) = by_hand("env", [0], 3, "--format", "json")
    follower = Script(mark, port, 1, 3)

    async def terminate() -> None:
        running = asyncio.ensure_future(follower.run(int, "go on"))
        await asyncio.wait_for(follower.came_in.wait(), 30)
        first.interrupt(signal.SIGTERM)
        await asyncio.wait_for(running, 30)

    asyncio.run(terminate())
    assert first.wait().code == follower.code == 143


def test_a_late_rank_0_joins_its_stand_in(by_hand):
    (second,) = by_hand("gate", [1], 2, "--join-timeout", "14", "--format", "json", *TABLE)
    time.sleep(8.5)
    (first,) = by_hand("gate", [0], 2, "--join-timeout", "14", "--format", "json", *TABLE)
    ended = [first.wait(), second.wait()]
    assert [e.code for e in ended] == [0, 0], ended
    assert {row["wrong"] for e in ended if e.out for row in e.report["bandwidth"]} == {0}


def test_with_a_short_time_limit_the_missing_rank_is_named_and_not_the_resolver(by_hand):
    (second,) = by_hand("env", [1], 2, "--timeout", "4", "--format", "json")
    ended = second.wait()
    assert (ended.code, ended.rules) == (20, ["env-rank-missing"]), ended


def test_a_killed_stand_in_is_named_by_rank_0(by_hand):
    # Rank 1 stands in for rank 0 after half of its --join-timeout, and then waits for the other half.
    words = ("--join-timeout", "20", "--format", "json", "--sizes", "16M:16M", "--iters", "400")
    (second,) = by_hand("bandwidth", [1], 2, *words)
    time.sleep(11)
    (first,) = by_hand("bandwidth", [0], 2, *words)
    first.ranks(1, 60)
    second.interrupt(signal.SIGKILL)
    ended = first.wait()
    found = ended.error
    # Its process is lost before the collectives begin, or its rank dies in them.
    assert (ended.code, found["ranks"]) == (20, [1]), found
    assert found["rule"] in {"probe-process-lost", "collective-rank-died"}, found


def test_a_world_of_a_thousand_million_ends_in_time(by_hand):
    (run,) = by_hand("env", [0], 1_000_000_000, "--join-timeout", "2", "--format", "json", "--output", "report")
    assert run.wait(60).code == 20


def test_a_report_without_a_reader_does_not_outlive_the_timeout(start):
    reader, writer = os.pipe()
    os.write(writer, b"x" * 65536)  # the pipe is full before distcheck has said a word
    run = start("env", "--nproc", "2", "--timeout", "3", stdout=writer)
    os.close(writer)
    _, err = run.process.communicate(timeout=60)
    os.close(reader)
    assert run.process.returncode == 20
    assert time.monotonic() - run.started < 3 + 30  # without a reader it would never end
    assert "blocked past the deadline" in err


def test_sigterm_ends_a_run_that_is_blocked_in_its_report(start):
    reader, writer = os.pipe()
    os.write(writer, b"x" * 65536)
    run = start("env", "--nproc", "2", stdout=writer)
    os.close(writer)
    wchan = Path(f"/proc/{run.process.pid}/wchan")  # the function of the kernel in which it is
    until(lambda: "pipe" in wchan.read_text())
    run.interrupt(signal.SIGTERM)
    assert run.process.wait(timeout=30) == 143
    os.close(reader)


def test_the_death_of_the_program_that_forks_the_ranks_ends_the_run_at_once(start):
    run = start("bandwidth", "--nproc", "2", "--format", "json", "--sizes", "16M:16M", "--iters", "400")
    run.ranks(2)
    time.sleep(1)
    (program,) = psutil.Process(run.process.pid).children()
    program.kill()
    killed = time.monotonic()
    ended = run.wait()
    assert time.monotonic() - killed < 15
    assert ended.code == 20
    assert ended.rules == ["collective-rank-died"]
    assert "SIGKILL" in ended.report["findings"][0]["message"]


LIMITS = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"


def test_a_leader_raises_its_open_file_limit_and_restores_it_for_the_command(start, tmp_path, port):
    limited = ["sh", "-c", 'ulimit -Sn 300; exec "$0" "$@"', sys.executable]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env = alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    gate = start("-m", "distcheck", "gate", *TABLE, "--", sys.executable, "-c", LIMITS, program=limited, env=env).wait()
    bare = subprocess.run([*limited, "-c", LIMITS], capture_output=True, text=True, check=True)
    assert gate.out == bare.stdout
    assert gate.out.startswith("(300,")
