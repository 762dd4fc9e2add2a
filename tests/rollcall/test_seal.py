"""A token: processes without it are refused, and an attacker on the path can end a conversation, not change it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real.relay import REFLECTED, relay
from real.waiting import soon

from distcheck.rollcall import framing, protocol, seal, wire
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Bye, Here, LastCall, NotYet, Trouble, Welcome
from distcheck.rollcall.wire import HEADER, ProtocolError

TOKEN = "distcheck-0123456789abcdef0123456789abcdef"
SECRET, OTHER = seal.secret_of(TOKEN), seal.secret_of("distcheck-" + 32 * "f")


def both(hello: bytes = b"hello", challenge: bytes = b"challenge", secret: bytes = SECRET):
    return seal.seals(secret, hello, challenge)


def body_of(frame: bytes) -> bytes:
    assert HEADER.unpack(frame[: HEADER.size])[1] == len(frame) - HEADER.size
    return frame[HEADER.size :]


# -- the seal ------------------------------------------------------------------------------------------------


def test_what_one_side_seals_the_other_opens_in_order():
    (says, _), (hears, _) = both(), both()
    words = [Here(), Trouble("one"), Trouble("two")]
    for word in words:
        assert framing.decode(hears.open(body_of(encode(word, says))), protocol.follower_decoder) == word


@pytest.mark.parametrize("which", ["hello", "challenge", "secret"])
def test_another_handshake_or_another_token_opens_no_frame(which):
    (says, _) = both()
    (hears, _) = both(**{which: OTHER})
    with pytest.raises(ProtocolError, match="invalid seal"):
        hears.open(body_of(encode(Here(), says)))


def test_where_the_hello_ends_and_the_challenge_begins_cannot_be_moved():
    (says, _), (hears, _) = both(b"ab", b"c"), both(b"a", b"bc")
    with pytest.raises(ProtocolError):
        hears.open(body_of(encode(Here(), says)))


def test_a_frame_that_is_repeated_left_out_overtaken_or_sent_back_does_not_fit():
    (follower, _), (_, leader) = both(), both()
    first, second, third = (body_of(encode(Trouble(t), follower)) for t in "123")
    for order in ([first, first], [second], [first, third], [first, second, second]):
        (hears, _) = both()
        for body in order[:-1]:
            hears.open(body)
        with pytest.raises(ProtocolError):
            hears.open(order[-1])
    (_, own) = both()
    with pytest.raises(ProtocolError):
        own.open(first)  # the follower's own frame, sent back to it as the leader's
    assert leader.close(encode(Here())) != follower.close(encode(Here()))


@given(st.data())
def test_a_changed_frame_has_an_invalid_seal(data):
    (says, _), (hears, _) = both(), both()
    good = body_of(encode(Trouble("rank 1 died"), says))
    raw = bytearray(good)
    match data.draw(st.sampled_from(["flip", "cut", "longer", "random"])):
        case "flip":
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        case "longer":
            raw += data.draw(st.binary(min_size=1, max_size=40))
        case _:
            raw[:] = data.draw(st.binary(max_size=80))
    with pytest.raises(ProtocolError):
        hears.open(bytes(raw))


def test_a_token_that_distcheck_made_is_new_each_time_and_costs_nothing(monkeypatch):
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: pytest.fail("stretched"))
    tokens = {seal.make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert len({seal.secret_of(t) for t in tokens}) == 100


@pytest.mark.parametrize("token", ["open sesame", TOKEN + "0", TOKEN.upper(), "distcheck-" + "g" * 32])
def test_a_token_chosen_by_a_person_is_stretched(monkeypatch, token):
    rounds: list[int] = []
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *args: rounds.append(args[3]) or b"stretched")
    seal.secret_of.cache_clear()
    assert seal.secret_of(token) == b"stretched"
    assert rounds[0] >= 100_000
    seal.secret_of.cache_clear()


# -- who comes in --------------------------------------------------------------------------------------------


async def test_followers_and_a_leader_with_the_token_meet(leading):
    async with leading(3, SECRET) as leader:
        one, two = [await leader.come(f"follower {n}", n, secret=SECRET) for n in (1, 2)]
        assert await leader.server.wait_for_all(5)
        one.connection.say(Trouble("a"))
        leader.server.say_to_all(LastCall())
        for came in (one, two):
            assert await came.connection.hear() == LastCall()
            came.connection.say(Here())
        assert len(await leader.server.hear_all(Here, 5)) == 2
        leader.server.say_to_all(Bye(0, "", "", 0))
        assert [await came.connection.hear() for came in (one, two)] == [Bye(0, "", "", 0)] * 2


@pytest.mark.parametrize(("ours", "theirs"), [(SECRET, None), (SECRET, OTHER), (None, SECRET)])
async def test_a_process_without_the_token_is_refused_and_changes_nothing(leading, ours, theirs):
    async with leading(2, ours) as leader:
        leader.server.on_trouble = pytest.fail
        came = await leader.come("stranger", 1, seconds=0.4, secret=theirs)
        assert came.connection is None
        assert {a.outcome for a in came.attempts} <= {"stranger", "closed"}
        assert leader.server.followers == {}
        assert leader.server.missing(9) == (1,)


async def test_a_replayed_conversation_is_refused(leading, hello, report):
    async with leading(3, SECRET) as leader, relay(leader.port) as (port, said):
        await leader.come("one", 1, secret=SECRET, port=port)
        await soon(lambda: "one" in leader.server.followers)
        follower = leader.server.followers["one"]
        leader.writers[-1].transport.abort()
        await soon(lambda: follower.gone)
        del leader.server.followers["one"]  # as if it had never been there
        reader, writer = await leader.connect()
        writer.write(b"".join(said["follower"]))
        await asyncio.wait_for(reader.read(), 5)
        assert leader.server.followers == {}


@pytest.mark.parametrize(
    "answer", [lambda nonce: Welcome(nonce, "run", "leader"), lambda nonce: NotYet(nonce, "127.0.0.1:1")]
)
@pytest.mark.parametrize("challenges", [False, True])
async def test_a_leader_without_the_token_is_not_joined(leading, answer, challenges):
    """It answers as a leader would that saw the Hello, with or without asking for a proof that it cannot check."""

    async def pretend(reader, writer):
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            said = await framing.read(reader, protocol.hello_decoder)
            keys = None
            if challenges:
                writer.write(encode(protocol.Challenge(said.nonce, "f" * 32)))
                await framing.read_body(reader, 4096)
                _, keys = seal.seals(OTHER, b"", b"")
            writer.write(encode(answer(said.nonce), keys))
            await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    async with leading(2, SECRET) as leader:
        came = await leader.come("follower", 1, seconds=0.4, secret=SECRET, port=server.sockets[0].getsockname()[1])
    assert came.connection is None
    assert {a.outcome for a in came.attempts} <= {"stranger", "foreign", "timeout"}
    server.close()


# -- who is in between ---------------------------------------------------------------------------------------


def _flip(frame: bytes) -> list[bytes]:
    at = HEADER.size + (len(frame) - HEADER.size) // 2
    return [frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]]


def _cut(frame: bytes) -> list[bytes]:
    body = frame[HEADER.size : -1]
    return [HEADER.pack(wire.MAGIC, len(body)) + body]


MISCHIEF = {
    "altered": _flip,
    "cut": _cut,
    "left out": lambda _frame: [],
    "repeated": lambda frame: [frame, frame],
    "sent back": lambda _frame: [REFLECTED],
    "replaced": lambda _frame: [encode(Here())],
}


@pytest.mark.long
@pytest.mark.parametrize("mischief", MISCHIEF)
@pytest.mark.parametrize(("who", "number"), [("follower", n) for n in range(4)] + [("leader", n) for n in range(4)])
def test_an_attacker_on_the_path_can_end_a_conversation_but_not_change_it(leading, live, mischief, who, number):
    """Frames 0 to 3: a follower's Hello, Proof, Report and Here, a leader's Challenge, Welcome, LastCall and Bye."""

    def change(speaker, n, frame):
        return MISCHIEF[mischief](frame) if (speaker, n) == (who, number) else [frame]

    heard = []

    async def attend(leader, port):
        came = await leader.come("follower", 1, seconds=0.4, secret=SECRET, port=port)
        if came.connection is None:
            return
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            while True:
                heard.append(await asyncio.wait_for(came.connection.hear(), 1.0))
                if heard[-1] == LastCall():
                    came.connection.say(Here())
        came.connection.writer.close()

    async def main():
        async with leading(2, SECRET) as leader, relay(leader.port, change) as (port, _):
            attending = asyncio.ensure_future(attend(leader, port))
            await leader.server.wait_for_all(0.6)
            followers = tuple(leader.server.followers)
            leader.server.say_to_all(LastCall())
            present = await leader.server.hear_all(Here, 0.5)
            leader.server.say_to_all(Bye(0, "", "", 0))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(attending, 4)
            return followers, [type(w) for w in present.values()]

    with contextlib.suppress(asyncio.TimeoutError):
        followers, present = live(main())
    # What was heard is a beginning of what was said: nothing else, nothing twice, nothing in another order.
    assert heard == [LastCall(), Bye(0, "", "", 0)][: len(heard)]
    assert followers in {(), ("follower",)}
    assert present in ([], [Here])
    if number < 2 and mischief != "repeated":
        assert followers == ()


def test_neither_the_token_nor_its_secret_crosses_the_network(leading, live):
    async def main():
        async with leading(2, SECRET) as leader, relay(leader.port) as (port, said):
            await leader.come("follower", 1, secret=SECRET, port=port)
            assert await leader.server.wait_for_all(5)
            return b"".join(said["follower"] + said["leader"])

    crossed = live(main())
    for secret in (TOKEN.encode(), SECRET, SECRET.hex().encode()):
        assert secret not in crossed
    assert len(crossed) > 300
