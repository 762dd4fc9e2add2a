from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.ranges import fold, unfold


@given(st.sets(st.integers(0, 3000)))
def test_what_is_folded_unfolds_to_the_same(numbers):
    assert unfold(fold(numbers)) == numbers


def test_neighbours_become_ranges():
    assert fold([7, 0, 1, 2, 2, 3]) == "0-3,7"
    assert unfold("0-3,7\n") == {0, 1, 2, 3, 7}


@given(st.text(max_size=12))
def test_any_text_can_be_read(text):
    assert all(n >= 0 for n in unfold(text))


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1,,2", "0-99999999999", "9" * 5000, "٣"])
def test_other_text_than_ranges_gives_no_numbers(text):
    assert unfold(text) == frozenset()
