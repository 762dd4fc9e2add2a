"""Errors in words that no table has: their shape names the most likely rule, and yields to whatever is known better."""

from __future__ import annotations

import pytest
from explain.answered import found

from distcheck.explain.answer import spellings
from distcheck.explain.matching import Matcher
from distcheck.explain.reading import Piece
from distcheck.explain.spelling import told


def first_rule(text):
    return next((cause.rule for cause in found(text).causes), None)


@pytest.mark.parametrize("pattern", [r"\w+ (?:failed|died)", r"abc\d+", r"(?:a|b)", r"\d+(?:x|y)*", r"a|b"])
def test_a_pattern_whose_constant_part_is_short_is_refused(pattern):
    with pytest.raises(ValueError, match=r"no constant part|need a group"):
        told(pattern, "env-rank-unset", about="start-up")


def test_a_cause_is_found_after_many_lines_alike_that_have_only_a_word_of_it():
    alike = "".join(f"[rank0]: connect timeout is {n} s\n" for n in range(500)).encode()
    fault = b"[rank3]: store: connect: ECONNREFUSED\n" * 300
    pieces = [Piece(1, alike), Piece(501, alike), Piece(1001, alike + fault)]
    (found,) = Matcher(spellings()).search(pieces, "job.log")
    assert (found.text, found.line, found.times) == ("[rank3]: store: connect: ECONNREFUSED", 1501, 300)


RETRY = (
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [10.0.0.1]:29500 (errno: 111 - refused).\n"
)


def test_a_connection_that_fails_for_good_stays_the_cause():
    timed_out = (
        "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (h, 29500)\n"
    )
    assert first_rule(RETRY + timed_out) in {"net-master-refused", "net-master-unreachable"}
