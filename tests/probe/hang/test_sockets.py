"""Lines of /proc/PID/net/tcp."""

from __future__ import annotations

import os
import socket

import pytest

from distcheck.probe.hang.sockets import connection, parsed, unanswered

LINE = "0: 0100007F:7345 0100007F:B0C4 01 00000FA0:00000000 01:00000123 00000003 0 0 77 2 0 0 0 0"


def test_a_connection_has_its_addresses_queue_and_retransmissions():
    found = parsed(LINE.split())
    assert found == ("127.0.0.1:29509", "127.0.0.1:45252", 1, 4000, 3, 77)


def test_an_address_of_version_6_is_in_brackets_unless_it_is_one_of_version_4():
    other = LINE.replace("0100007F:7345", "0000000000000000FFFF00000100007F:7345").replace(
        "0100007F:B0C4", "00000000000000000000000001000000:B0C4"
    )
    assert parsed(other.split())[:2] == ("127.0.0.1:29509", "[::1]:45252")


@pytest.mark.parametrize("line", ["", "0: x y 01", LINE.replace("77", "x")])
def test_another_line_is_none(line):
    assert parsed(line.split()) is None


def test_the_connection_of_a_socket_is_found_among_those_of_its_process():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        found = connection(os.getpid(), str(os.fstat(client.fileno()).st_ino))
        assert found is not None
        assert found.remote == f"127.0.0.1:{server.getsockname()[1]}"
        assert connection(os.getpid(), "x") is None
        assert unanswered(os.getpid()) == ()
