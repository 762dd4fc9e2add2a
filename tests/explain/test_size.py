"""Large logs: lines that all differ cost little more than others, and memory stays bounded."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from distcheck.explain.answer import spellings
from distcheck.explain.matching import Matcher
from distcheck.explain.reading import CHUNK_BYTES, Piece

LINES = 3000


def words(generator):
    return " ".join("".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(9))


def seconds(line):
    generator = random.Random(1)
    data = "".join(line.format(words(generator)) for _ in range(LINES)).encode()
    matcher = Matcher(spellings())
    matcher.search([Piece(1, line.format("first").encode())], "warm.log")
    start = time.process_time()
    found = matcher.search([Piece(1, data)], "job.log")
    return time.process_time() - start, found


@pytest.mark.long
def test_errors_that_all_differ_cost_at_most_forty_times_what_other_lines_cost():
    plain, nothing = seconds("[rank1]: step {} of the epoch\n")
    errors, found = seconds("[rank1]: RuntimeError: {} of the epoch\n")
    assert (nothing, [seen.times for seen in found]) == ([], [LINES])
    assert errors < 40 * plain


@pytest.mark.long
def test_a_line_without_end_takes_no_more_memory_than_a_few_pieces():
    generator = random.Random(2)
    pieces = (Piece(1, generator.randbytes(CHUNK_BYTES).replace(b"\n", b" ")) for _ in range(30))
    matcher = Matcher(spellings())
    tracemalloc.start()
    matcher.search(pieces, "job.log")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * CHUNK_BYTES


def test_lines_that_all_differ_do_not_add_up_in_memory():
    matcher = Matcher(spellings())
    generator = random.Random(3)
    tracemalloc.start()
    for _ in range(3):
        lines = "".join(f"{words(generator) * 20}\n" for _ in range(700)).encode()
        matcher.search([Piece(1, lines)], "job.log")
    size = len(lines)
    del lines
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < size / 10


def test_a_cause_is_found_after_many_lines_alike_that_have_only_a_word_of_it():
    alike = "".join(f"[rank0]: connect timeout is {n} s\n" for n in range(500)).encode()
    fault = b"[rank3]: store: connect: ECONNREFUSED\n" * 300
    pieces = [Piece(1, alike), Piece(501, alike), Piece(1001, alike + fault)]
    (found,) = Matcher(spellings()).search(pieces, "job.log")
    assert (found.text, found.line, found.times) == ("[rank3]: store: connect: ECONNREFUSED", 1501, 300)
