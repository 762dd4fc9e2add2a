from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.ranges import fold, numbered, unfold


@given(st.sets(st.integers(0, 3000)))
def test_what_is_folded_unfolds_to_the_same(numbers):
    assert unfold(fold(numbers)) == numbers


@given(st.sets(st.integers(min_value=0, max_value=300)))
def test_neighbouring_ranges_are_one(numbers):
    pieces = fold(numbers).split(",") if numbers else []
    ends = [tuple(map(int, piece.split("-"))) for piece in pieces]
    assert all(right[0] > left[-1] + 1 for left, right in pairwise(ends))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2, 5), "0-2,5"),
        ((16, *range(8)), "0-7,16"),
        ((-2, -1, 0, 1), "-2,-1,0-1"),
        ((1, 1), "1"),
    ],
)
def test_numbers_fold_into_ascending_ranges(numbers, text):
    assert fold(numbers) == text


def test_after_the_limit_the_rest_is_counted():
    assert fold((0, 2, 4, 5), 2) == "0,2,… (4 in all)"


@pytest.mark.parametrize(
    ("ranks", "words"), [([3, 3], "rank 3"), ([7, 0, 1, 2], "ranks 0-2,7"), ([0, 2, 4], "ranks 0,2,… (3 in all)")]
)
def test_ranks_are_named_in_the_singular_or_the_plural(ranks, words):
    assert numbered(ranks, 2) == words
    assert fold((0, 2, 4, 5), 3) == "0,2,4-5"


def test_ranges_can_have_spaces_and_a_line_end():
    assert unfold("0-3, 7\n") == {0, 1, 2, 3, 7}


@given(st.text(max_size=12))
def test_any_text_can_be_read(text):
    assert all(n >= 0 for n in unfold(text))


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1,,2", "0-99999999999", "9" * 5000, "٣"])
def test_other_text_than_ranges_gives_no_numbers(text):
    assert unfold(text) == frozenset()
