from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.report.fold import fold, fold_nodes


def unfold(text):
    ranks = []
    for piece in text.split(",") if text else []:
        first, _, last = piece.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


@given(st.lists(st.integers(min_value=0, max_value=300)))
def test_folding_loses_nothing(ranks):
    assert unfold(fold(ranks)) == sorted(set(ranks))


@given(st.sets(st.integers(min_value=0, max_value=300)))
def test_neighbouring_ranges_are_one(ranks):
    pieces = fold(ranks).split(",") if ranks else []
    ends = [tuple(map(int, piece.split("-"))) for piece in pieces]
    assert all(right[0] > left[-1] + 1 for left, right in pairwise(ends))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2, 5), "0-2,5"),
        ((16, *range(8)), "0-7,16"),
        ((-2, -1, 0, 1), "-2,-1,0-1"),
        ((1, 1), "1"),
    ],
)
def test_examples(ranks, text):
    assert fold(ranks) == text


def test_after_the_limit_the_rest_is_counted():
    assert fold((0, 2, 4, 5), 2) == "0,2,… (4 in all)"
    assert fold((0, 2, 4, 5), 3) == "0,2,4-5"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("node1",), "node1"),
        (("node2", "node1"), "node[1-2]"),
        (("n09", "n10"), "n[09-10]"),
        (("a", "b[1-2]", "@group", "x,y"), "@group,a,b[1-2],x,y"),
    ],
)
def test_nodes(names, text):
    assert sorted(fold_nodes(names).split(",")) == sorted(text.split(","))
