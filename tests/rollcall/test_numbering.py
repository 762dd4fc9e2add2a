"""Nodes that type the same line get their numbers where they meet."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from distcheck.rollcall import identity, numbering, seal
from distcheck.rollcall.numbering import Numbered, Rendezvous, number_by_arrival


@pytest.fixture
def name() -> str:
    return f"test {secrets.token_hex(8)}"


def silent(_: str) -> None:
    pass


def come(meeting: Rendezvous, *, after: float = 0.0, seconds: float = 10.0) -> Numbered | None:
    time.sleep(after)
    return asyncio.run(number_by_arrival(meeting, seconds, silent))


def all_come(*meetings: Rendezvous, seconds: float = 10.0) -> list[Numbered | None]:
    with ThreadPoolExecutor(len(meetings)) as pool:
        coming = [pool.submit(come, m, after=0.2 * n, seconds=seconds) for n, m in enumerate(meetings)]
        return [each.result() for each in coming]


def test_the_endpoints_host_is_node_0_and_the_others_follow_in_their_order(name):
    meeting = Rendezvous(name, ("127.0.0.1",), 3, 3)
    assert all_come(meeting, meeting, meeting) == [Numbered(0, 3, 3), Numbered(1, 3, 3), Numbered(2, 3, 3)]


def test_an_elastic_job_starts_with_those_that_are_there(name, monkeypatch):
    monkeypatch.setattr(numbering, "LAST_CALL_SECONDS", 0.5)
    meeting = Rendezvous(name, ("127.0.0.1",), 4, 1)
    assert all_come(meeting, meeting) == [Numbered(0, 2, 2), Numbered(1, 2, 2)]


def test_where_nodes_are_missing_those_that_came_have_numbers_and_know_it(name):
    meeting = Rendezvous(name, ("127.0.0.1",), 3, 3)
    assert all_come(meeting, meeting, seconds=1.5) == [Numbered(0, 3, 2), Numbered(1, 3, 2)]


def test_a_node_that_goes_leaves_its_number_to_the_next(name):
    meeting = Rendezvous(name, ("127.0.0.1",), 2, 2)
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(come, meeting)
        time.sleep(0.3)
        with socket.create_connection(("127.0.0.1", identity.side_ports(name)[0])) as other:
            other.makefile().readline()
        assert pool.submit(come, meeting).result() == Numbered(1, 2, 2)
        assert host.result() == Numbered(0, 2, 2)


def test_strangers_and_other_jobs_get_no_number(name):
    told: list[str] = []
    meeting, other = Rendezvous(name, ("127.0.0.1",), 2, 2), Rendezvous(f"{name} 2", ("127.0.0.1",), 2, 2)
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(asyncio.run, number_by_arrival(meeting, 5.0, told.append))
        time.sleep(0.3)
        port = identity.side_ports(name)[0]
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 2000, b"abc\n"):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(junk)
        assert pool.submit(come, other, seconds=0.5).result() == Numbered(0, 2, 1)
        assert pool.submit(come, meeting).result() == Numbered(1, 2, 2)
        assert host.result() == Numbered(0, 2, 2)
    assert told[0] == "1 of 2 nodes came, waiting for the others"


def test_with_a_token_only_who_knows_it_is_numbered(name):
    ours, theirs = (seal.secret_of(seal.make_token()) for _ in range(2))
    meeting = Rendezvous(name, ("127.0.0.1",), 2, 2, ours)
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(come, meeting)
        time.sleep(0.3)
        stranger = pool.submit(come, meeting._replace(secret=theirs), seconds=1.0)
        without = pool.submit(come, meeting._replace(secret=None), after=0.2, seconds=1.0)
        assert {stranger.result(), without.result()} <= {None, Numbered(0, 2, 1)}
        assert pool.submit(come, meeting).result() == Numbered(1, 2, 2)
        assert host.result() == Numbered(0, 2, 2)


def test_without_a_host_nobody_has_a_number(name):
    # An address of the documentation's network, which no machine has.
    assert come(Rendezvous(name, ("192.0.2.1",), 2, 2), seconds=0.5) is None


def test_a_port_that_another_program_holds_is_passed_over(name, monkeypatch):
    monkeypatch.setattr(numbering, "_ANSWER_SECONDS", 0.3)
    meeting = Rendezvous(name, ("127.0.0.1",), 2, 2)
    with socket.create_server(("127.0.0.1", identity.side_ports(name)[0])):
        assert set(all_come(meeting, meeting)) == {Numbered(0, 2, 2), Numbered(1, 2, 2)}
