"""The share of the plateau that a size reaches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.expectation import curve

CURVES = [
    curve.AMPERE_ALL_REDUCE,
    curve.HOPPER_ALL_REDUCE,
    curve.BLACKWELL_ALL_REDUCE,
    curve.RING,
    curve.NETWORK,
    curve.PCIE,
]


@pytest.mark.parametrize("each", CURVES)
def test_a_size_in_the_table_has_its_share_and_the_largest_is_the_plateau(each):
    for size, share in each.items():
        assert curve.share_at(each, size) == pytest.approx(share)
    assert curve.share_at(each, 1 << 40) == 1.0
    assert curve.share_at(each, min(each) - 1) is None


@given(st.sampled_from(CURVES), st.integers(1 << 20, 1 << 35), st.integers(1 << 20, 1 << 35))
def test_larger_sizes_never_reach_less(each, one, other):
    small, large = (curve.share_at(each, size) for size in sorted((one, other)))
    assert (small or 0.0) <= (large or 0.0) + 1e-12


def test_between_two_sizes_the_share_follows_the_logarithm():
    assert curve.share_at(curve.RING, 181 << 20) == pytest.approx(0.875, abs=0.001)  # 128 MiB times the root of 2


def test_faster_links_need_larger_sizes():
    fast = curve.stretched(curve.RING, 2.0)
    assert curve.share_at(fast, 256 << 20) == pytest.approx(curve.share_at(curve.RING, 128 << 20))
