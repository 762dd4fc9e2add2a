"""Rank 0's process with a limit of open files that has no room for all others."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import pytest

from distcheck.facts.placement import Placement
from distcheck.probe import host
from distcheck.probe.own import process_facts, rank_facts
from distcheck.rollcall import client, identity
from distcheck.rollcall.protocol import Bye, Hello, Here, LastCall, Report

WORLD = 100


async def _follow(mark: str, port: int, rank: int, node) -> int | str | None:
    """Follow the leader to the end and return the exit code; why not if it does not admit this rank; None if it ends.

    All followers are in this process; where others keep it from its work, the roll call may close before a report is
    there, as if that rank had not come.
    """
    place = Placement(rank=rank, world_size=WORLD, master_addr="127.0.0.1", master_port=port, launcher="by hand")
    environ, uid = {"DISTCHECK_TOKEN": mark}, f"follower {rank}"
    hello = Hello(
        nonce="", job=identity.public_key(identity.job_key(environ, place)),
        master=f"127.0.0.1:{port}", uid=uid, ranks=(rank,), world_size=WORLD, seconds_left=60,
    )  # fmt: skip
    ways = client.doors(["127.0.0.1"], port, "", side=False)
    secret = identity.job_secret(environ)
    await asyncio.sleep(0.03 * rank)  # as processes of their own, which do not all connect at once
    came = await client.attend(ways, hello, seconds=12, connect_seconds=3, secret=secret)
    if came.connection is None:
        return came.attempts[0].outcome
    process = msgspec.structs.replace(process_facts(uid, node), stage="meeting")
    try:
        came.connection.say(Report(node, process, (rank_facts(uid, node, place, {}),)))
        while not isinstance(word := await came.connection.hear(), Bye):
            if isinstance(word, LastCall):
                came.connection.say(Here())
    except EOFError:
        return None
    finally:
        came.connection.writer.close()
    return word.exit_code


@pytest.mark.parametrize(("files", "kept_free"), [(140, 64), (64, 20)])
def test_a_leader_without_room_for_all_processes_says_so_and_blames_no_node(by_hand, mark, port, files, kept_free):
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "distcheck"]
    arguments = ("--format", "json", "--join-timeout", "15", "--timeout", "40")
    node = host.collect(dict(os.environ))  # before the leader begins to wait
    (first,) = by_hand("env", [0], WORLD, *arguments, program=limited)

    async def crowd():
        return await asyncio.gather(*(_follow(mark, port, rank, node) for rank in range(1, WORLD)))

    codes = asyncio.run(crowd())
    ended = first.wait(40)
    assert (ended.code, ended.rules) == (30, ["probe-open-files"]), ended
    assert "Traceback" not in ended.err
    assert {30, "full"} <= set(codes) <= {30, "full", None}
    admitted = codes.count(30)
    (found,) = ended.report["findings"]
    room = found["evidence"]["room"]
    assert files // 4 < room < files - kept_free  # some files are open already
    assert found["evidence"] == {"room": room, "processes": WORLD - 1, "joined": admitted}
    assert room // 2 < admitted <= room
