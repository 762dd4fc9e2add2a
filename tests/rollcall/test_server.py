"""The leader under attack: whatever strangers do, the followers join, and nothing is printed."""

from __future__ import annotations

import asyncio
import random
import struct
import time

import msgspec
import pytest
from real.waiting import soon

from distcheck.facts.launch_command import Stated
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.rollcall import client, framing, identity, protocol, server, wire
from distcheck.rollcall.brief import LEFT_OUT
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Bye, Here, LastCall, PeerDoor, PeerReport, Trouble


async def _random_bytes(leader):
    for seed in range(20):
        _, writer = await leader.connect()
        writer.write(random.Random(seed).randbytes(300))
        await asyncio.sleep(0)
        writer.close()


async def _half_open(leader):
    for _ in range(20):
        await leader.connect()


async def _slow_writer(leader):
    _, writer = await leader.connect()
    for byte in wire.HEADER.pack(wire.MAGIC, 100):
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


async def _huge_header(leader):
    reader, writer = await leader.connect()
    writer.write(wire.HEADER.pack(wire.MAGIC, 0xFFFFFFFF) + b"x" * 1000)
    assert await asyncio.wait_for(reader.read(), 2) == b""


async def _reset(leader):
    for _ in range(20):
        _, writer = await leader.connect()
        writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: RST, not FIN
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        writer.transport.abort()


async def _stranger_job(leader):
    came = await leader.come("stranger", 1, seconds=0.3, job=identity.public_key("another job"))
    assert came.connection is None
    assert {a.outcome for a in came.attempts} == {"stranger"}


@pytest.mark.parametrize("stranger", [_random_bytes, _half_open, _slow_writer, _huge_header, _reset, _stranger_job])
def test_followers_join_whatever_a_stranger_does(leading, live, capfd, stranger):
    async def main():
        async with leading(4) as leader:
            mischief = asyncio.ensure_future(stranger(leader))
            await asyncio.gather(*(leader.come(f"follower {n}", n) for n in (1, 2, 3)))
            assert await leader.server.wait_for_all(3)
            assert sorted(leader.server.followers) == ["follower 1", "follower 2", "follower 3"]
            await mischief
            assert all(not f.gone for f in leader.server.followers.values())

    live(main())
    assert capfd.readouterr() == ("", "")


async def test_many_silent_connections_do_not_keep_followers_out(leading):
    async with leading(2) as leader:
        leader.server.most_connections = 16
        crowd = [await leader.connect() for _ in range(200)]
        await leader.come("follower", 1)
        assert await leader.server.wait_for_all(3)
        assert await asyncio.wait_for(crowd[0][0].read(), 2) == b""  # the oldest had to go


async def test_a_crowd_does_not_push_out_who_was_admitted_and_has_yet_to_report(leading, hello, report):
    async with leading(2) as leader:
        leader.server.most_connections = 4
        reader, writer = await leader.connect()
        writer.write(encode(hello("follower", 1)))
        assert isinstance(await framing.read(reader, protocol.answer_decoder, 1 << 16), protocol.Welcome)
        crowd = [await leader.connect() for _ in range(100)]
        assert await asyncio.wait_for(crowd[0][0].read(), 2) == b""
        writer.write(encode(report("follower", 1)))
        assert await leader.server.wait_for_all(3)


async def test_a_follower_is_told_if_the_leader_may_not_open_more_files(leading):
    async with leading(4) as leader:
        leader.server.most_connections = 1
        assert (await leader.come("first", 1)).connection is not None
        came = await leader.come("second", 2, seconds=0.5)
        assert came.connection is None
        assert [a.outcome for a in came.attempts] == ["full"]


async def test_a_follower_with_another_master_waits_until_missing_ranks_may_be_filled(leading):
    async with leading(2) as leader:
        other = {"master": "127.0.0.1:1", "world_size": 2}
        came = await leader.come("follower", 1, seconds=0.3, **other)
        assert came.connection is None
        assert [a.outcome for a in came.attempts] == ["waiting"]
        leader.server.admit_strangers = True
        assert (await leader.come("fits not", 5, seconds=0.3, **other)).connection is None
        assert (await leader.come("no gap", 0, seconds=0.3, **other)).connection is None
        assert (await leader.come("fits", 1, **other)).connection is not None
        assert await leader.server.wait_for_all(3)


@pytest.mark.parametrize("name", ["localhost", "node1-data", "10.78.0.1", "::1", "fd00::1"])
async def test_a_follower_whose_master_name_led_here_is_admitted_at_once(leading, name):
    async with leading(2) as leader:
        came = await leader.come("follower", 1, seconds=0.3, master=f"{name}:29500", world_size=2)
        assert came.connection is not None
        assert await leader.server.wait_for_all(3)


@pytest.mark.parametrize("found", ["job", "node"])
async def test_a_follower_that_came_by_another_way_must_have_the_same_master(leading, found):
    async with leading(3) as leader:
        assert (await leader.come("same", 1, found=found)).connection is not None
        other = {"master": "another:29500", "found": found, "world_size": 3}
        came = await leader.come("another", 2, seconds=0.3, **other)
        assert [a.outcome for a in came.attempts] == ["waiting"]
        leader.server.admit_strangers = True
        came = await leader.come("another", 2, seconds=0.3, **other)
        assert (came.connection is not None) == (found == "job"), "another job may have its roll call on this node"


@pytest.mark.parametrize("secret", [None, b"secret"])
async def test_a_redirect_admits_no_follower_and_sends_those_of_its_master_to_the_leader(leading, secret):
    async with leading(4, secret) as leader:
        leader.server.leader_at = "127.0.0.2"
        came = await leader.come("follower", 1, seconds=0.3, secret=secret, found="job")
        assert came.connection is None
        assert [(a.outcome, a.detail) for a in came.attempts] == [("elsewhere", "127.0.0.2")]
        for found in ("master", "job"):
            came = await leader.come("another", 1, seconds=0.3, secret=secret, found=found, master="another:29500")
            assert [a.outcome for a in came.attempts] == ["waiting"]
        assert leader.server.followers == {}


async def test_lost_processes_of_a_node_join_only_their_own_node(leading):
    async with leading(8) as leader:
        leader.server.of_node = True
        assert (await leader.come("mate", 1, found="node")).connection is not None
        for found in ("master", "job"):
            assert (await leader.come(found, 2, seconds=0.3, found=found)).connection is None
        assert await leader.server.wait_for_all(3, ranks=2)
        assert not await leader.server.wait_for_all(0.1, ranks=3)


@pytest.mark.long
async def test_waiting_for_the_leader_is_not_a_followers_delay(leading):
    async with leading(3) as leader:
        await leader.come("at once", 1)
        knocking = asyncio.ensure_future(leader.come("led astray", 2, master="127.0.0.1:1", world_size=3))
        await asyncio.sleep(1.2)
        leader.server.admit_strangers = True
        await knocking
        assert await leader.server.wait_for_all(3)
        first, second = (leader.server.followers[uid].arrived_at for uid in ("at once", "led astray"))
        assert abs(second - first) < 0.6


async def test_a_rank_that_is_there_twice_comes_in_twice_but_a_process_only_once(leading):
    async with leading(2) as leader:
        await leader.come("one", 1)
        await leader.come("two", 1)
        await soon(lambda: len(leader.server.followers) == 2)
        assert (await leader.come("one", 1, seconds=0.3)).connection is None


async def test_a_replayed_conversation_changes_nothing(leading, hello, report):
    async with leading(3) as leader:
        said = encode(hello("one", 1)) + encode(report("one", 1))
        first = await leader.connect()
        first[1].write(said)
        await soon(lambda: "one" in leader.server.followers)
        follower = leader.server.followers["one"]
        again = await leader.connect()
        again[1].write(said)
        await asyncio.wait_for(again[0].read(), 3)
        assert leader.server.followers == {"one": follower}
        assert not follower.gone


@pytest.mark.parametrize(
    "fault", ["another uid", "another rank", "another node", "another's door", "the leader's uid", "no report"]
)
async def test_a_report_that_does_not_hold_together_is_not_taken(leading, hello, report, fault):
    said = report("one", 1)
    uid = "one"
    match fault:
        case "another uid":
            said = report("two", 1)
        case "another rank":
            said = report("one", 2)
        case "another node":
            said = msgspec.structs.replace(said, process=msgspec.structs.replace(said.process, node="elsewhere"))
        case "another's door":
            said = msgspec.structs.replace(said, peer_doors=(PeerDoor("two", "127.0.0.1", 5),))
        case "the leader's uid":
            uid, said = "leader", report("leader", 1)
        case _:
            said = PeerReport(())

    async with leading(3) as leader:
        reader, writer = await leader.connect()
        writer.write(encode(hello(uid, 1)) + encode(said))
        await asyncio.wait_for(reader.read(), 3)
        assert leader.server.followers == {}
        assert leader.server.missing(9) == (1, 2)


async def test_ranks_beyond_the_world_do_not_make_the_roll_complete(leading):
    async with leading(3) as leader:
        await leader.come("odd", -1, 7, 8, 9, 2**31)
        await soon(lambda: leader.server.followers)
        assert not leader.server.complete
        assert leader.server.missing(1) == (1,)


async def test_the_missing_of_a_world_without_end_are_named_at_once(leading):
    async with leading(10**15) as leader:
        assert leader.server.missing(3) == (1, 2, 3)
        assert not await leader.server.wait_for_all(0.1)


async def test_a_closed_roll_call_is_not_waited_for(leading):
    async with leading(world_size=3) as leader:
        waiting = asyncio.ensure_future(leader.server.wait_for_all(60))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        leader.server.close_roll()
        assert await asyncio.wait_for(waiting, 10) is False
        assert await asyncio.wait_for(leader.server.wait_for_all(60), 10) is False


@pytest.mark.parametrize("ranks", [(0, 1), (1, 3), (1, 1)], ids=["leader's", "beyond", "twice"])
async def test_missing_ranks_are_hardly_waited_for_once_as_many_processes_came_as_there_are_ranks(leading, ranks):
    async with leading(3) as leader:
        for number, rank in enumerate(ranks):
            await leader.come(f"follower {number}", rank)
        assert await asyncio.wait_for(leader.server.wait_for_all(60), 10) is False
        assert len(leader.server.followers) == 2


@pytest.mark.parametrize("refused", ["", "--nproc-per-node is 'two'"])
async def test_missing_ranks_are_hardly_waited_for_once_a_command_came_that_will_not_start(leading, report, refused):
    said = report("follower", 1)
    launch = Stated("torchrun", nodes=2, refused=refused)
    said = msgspec.structs.replace(said, process=msgspec.structs.replace(said.process, launch=launch))
    async with leading(4) as leader:
        await leader.come("follower", 1, said=said)
        waiting = asyncio.ensure_future(leader.server.wait_for_all(60))
        ended, _ = await asyncio.wait([waiting], timeout=server._REFUSED_SECONDS + 5)
        assert bool(ended) is bool(refused)
        waiting.cancel()


async def test_a_rank_that_left_and_came_again_did_not_come_twice(leading):
    async with leading(3) as leader:
        (await leader.come("first", 1)).connection.writer.close()
        await soon(lambda: [one.gone for one in leader.server.followers.values()] == [True])
        await leader.come("again", 1)
        waiting = asyncio.ensure_future(leader.server.wait_for_all(60))
        await asyncio.sleep(server._ALL_CAME_SECONDS + 0.3)
        await leader.come("late", 2)
        assert await asyncio.wait_for(waiting, 10) is True


@pytest.mark.parametrize("then", ["it reports", "it leaves", "nothing comes"])
async def test_a_process_that_was_admitted_in_the_last_moment_is_waited_for_but_not_for_long(
    leading, hello, report, monkeypatch, then
):
    monkeypatch.setattr(server, "_REPORT_PATIENCE_SECONDS", 0.5 if then == "nothing comes" else 60.0)

    async with leading(2) as leader:
        reader, writer = await leader.connect()
        writer.write(encode(hello("late", 1)))
        assert await framing.read(reader, protocol.answer_decoder)
        waiting = asyncio.ensure_future(leader.server.wait_for_all(0.1))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        if then == "it reports":
            writer.write(encode(report("late", 1)))
        elif then == "it leaves":
            writer.close()
        assert await asyncio.wait_for(waiting, 10) is (then == "it reports")
        assert list(leader.server.followers) == ["late"] * (then == "it reports")


async def test_the_roll_call_closes_before_the_first_follower_must_leave(leading):
    async with leading(3) as leader:
        await leader.come("hasty", 1, seconds_left=3.0)
        start = asyncio.get_running_loop().time()
        assert not await leader.server.wait_for_all(20, reserve=2.5)
        assert asyncio.get_running_loop().time() - start < 2


async def test_a_follower_that_leaves_is_gone_and_is_reported(leading):
    async with leading(2) as leader:
        trouble = []
        leader.server.on_trouble = trouble.append
        came = await leader.come("follower", 1)
        assert await leader.server.wait_for_all(3)
        came.connection.say(Trouble("rank 1 died"))
        came.connection.writer.close()
        await leader.server.wait_until_gone(3, ["follower"])
        assert leader.server.followers["follower"].gone
        assert trouble == ["rank 1 died", "lost the connection to node1"]
        assert await leader.server.hear_all(Here, 3) == {}


async def test_silent_followers_are_left_out_at_the_timeout(leading):
    async with leading(3) as leader:
        talks, silent = await leader.come("talks", 1), await leader.come("silent", 2)
        assert await leader.server.wait_for_all(3)
        leader.server.say_to_all(LastCall())
        assert await framing.read(silent.connection.reader, protocol.leader_decoder) == LastCall()
        talks.connection.say(PeerReport(()))
        talks.connection.say(Here())
        assert set(await leader.server.hear_all(Here, 0.5)) == {"talks"}
        leader.server.say_to_all(Bye(20, "", "", 0), ["silent"])
        assert await framing.read(silent.connection.reader, protocol.leader_decoder) == Bye(20, "", "", 0)


async def test_a_follower_that_floods_messages_is_dropped(leading):
    async with leading(2) as leader:
        came = await leader.come("chatterbox", 1)
        assert await leader.server.wait_for_all(3)
        for _ in range(1000):
            came.connection.say(Here())
        await soon(lambda: leader.server.followers["chatterbox"].gone)


async def test_a_handshake_that_is_unfinished_at_the_close_is_refused(leading, hello, report):
    async with leading(3) as leader:
        reader, writer = await leader.connect()
        writer.write(encode(hello("late", 1)))
        assert await framing.read(reader, protocol.answer_decoder)
        await leader.server.close_doors()
        writer.write(encode(report("late", 1)))
        with pytest.raises((EOFError, OSError)):
            await asyncio.wait_for(framing.read(reader, protocol.answer_decoder), 3)
        assert leader.server.followers == {}
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await leader.connect()


@pytest.mark.parametrize("wrong", [0.0, 60.0, -60.0])
async def test_a_followers_clock_is_compared_with_the_times_around_its_report(leading, hello, report, wrong):
    async with leading(2) as leader:
        ways = client.doors(["127.0.0.1"], leader.port, "a job", side=False)
        came = await client.attend(ways, hello("follower", 1), seconds=5, connect_seconds=2)
        leader.writers.append(came.connection.writer)
        came.connection.say(msgspec.structs.replace(report("follower", 1), clock_seconds=time.time() + wrong))
        await leader.server.wait_for_all(5)
        process = leader.server.followers["follower"].report.process
        offset, error = process.clock_offset_seconds, process.clock_error_seconds
        assert 0 <= error < 10
        assert offset - error - 0.002 <= wrong <= offset + error + 0.002, "rounded to milliseconds"


async def test_a_follower_that_sends_no_time_has_no_clock_offset(leading):
    async with leading(2) as leader:
        await leader.come("follower", 1)
        await leader.server.wait_for_all(5)
        assert leader.server.followers["follower"].report.process.clock_offset_seconds is None


async def test_an_interrupt_in_the_moment_in_which_the_roll_call_changes_is_not_lost(leading):
    async with leading(3) as leader:
        waiting = asyncio.ensure_future(leader.server.wait_for_all(30))
        await asyncio.sleep(0.01)
        leader.server.close_roll()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_nodes_with_equal_pci_trees_share_one_whatever_comes_between_them(leading, report):
    def tree(name):
        return Pci(gpus={}, nics=(Nic(name, PciPlace(("pci0000:00",), 0), "ib"),))

    async with leading(5) as leader:
        for rank, pci in enumerate((tree("mlx5_0"), LEFT_OUT, tree("mlx5_0"), tree("mlx5_1")), start=1):
            await leader.come(f"p{rank}", rank, said=report(f"p{rank}", rank, pci=pci))
            await soon(lambda number=rank: len(leader.server.followers) == number)
        first, between, second, other = (f.report.node.pci for f in leader.server.followers.values())
        assert second is first
        assert (first, between, other) == (tree("mlx5_0"), LEFT_OUT, tree("mlx5_1"))
