"""The straight line through the times of a sweep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives.curve import fit

MIB = 1 << 20
SIZES = tuple(1 << n for n in range(10, 31))
QUICK = (1 << 20, 1 << 24, 1 << 28)


def sweep(latency, rate, sizes=SIZES):
    return [(size, latency + size / rate) for size in sizes]


@given(latency=st.floats(1e-6, 1e-1), rate=st.floats(1e6, 1e12))
def test_a_straight_line_is_found(latency, rate):
    curve = fit(sweep(latency, rate))
    assert curve.latency_seconds == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert curve.bytes_per_second == pytest.approx(rate, rel=1e-3)
    assert curve.error < 1e-3
    assert curve.half_bytes == pytest.approx(latency * rate, rel=1e-2)


@given(rate=st.floats(1e6, 1e12))
def test_times_in_proportion_to_the_size_have_no_latency(rate):
    curve = fit(sweep(0.0, rate))
    assert curve.latency_seconds == curve.half_bytes == 0.0
    assert curve.bytes_per_second == pytest.approx(rate)


@given(
    latency=st.floats(1e-5, 1e-3),
    rate=st.floats(1e8, 1e11),
    noise=st.lists(st.floats(0.95, 1.05), min_size=21, max_size=21),
)
def test_noise_moves_it_by_at_most_itself(latency, rate, noise):
    curve = fit([(size, seconds * n) for (size, seconds), n in zip(sweep(latency, rate), noise, strict=True)])
    assert curve.bytes_per_second == pytest.approx(rate, rel=0.08)
    assert curve.latency_seconds == pytest.approx(latency, rel=0.08)
    assert curve.error <= 0.06


@pytest.mark.parametrize("odd", [0, 7, 20])
def test_one_size_that_was_disturbed_does_not_bend_it(odd):
    points = sweep(5e-5, 4e10)
    size, seconds = points[odd]
    points[odd] = size, 3 * seconds
    curve = fit(points)
    assert curve.bytes_per_second == pytest.approx(4e10, rel=0.01)
    assert curve.latency_seconds == pytest.approx(5e-5, rel=0.01)


def test_three_sizes_give_nearly_the_line_of_the_whole_sweep():
    whole, quick = fit(sweep(5e-5, 4e10)), fit(sweep(5e-5, 4e10, QUICK))
    assert quick.bytes_per_second == pytest.approx(whole.bytes_per_second, rel=0.01)


def test_a_published_sweep_has_the_plateau_that_was_published():
    # 8 A100, all_reduce: bus bandwidths of a fleet of 1,939 nodes, github.com/microsoft/superbench-results.
    busbw = {MIB: 23.67, 32 * MIB: 155.3, 256 * MIB: 221.9, 1024 * MIB: 229.9, 8192 * MIB: 235.05}
    curve = fit((size, size / (value * 1e9) * 1.75) for size, value in busbw.items())
    assert curve.bytes_per_second * 1.75 / 1e9 == pytest.approx(235, rel=0.03)
    assert curve.error < 0.1


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, 1.0), (2, 2.0)], [(4, 1.0)] * 5])
def test_fewer_than_three_sizes_give_no_line(points):
    assert fit(points) is None


def test_without_longer_times_for_larger_sizes_there_is_no_bandwidth():
    assert fit([(size, 1.0 / size) for size in SIZES]) is None


@given(st.lists(st.tuples(st.integers(1, 1 << 37), st.floats(1e-9, 1e3)), max_size=40))
def test_any_measured_values_are_accepted(points):
    curve = fit(points)
    assert curve is None or (curve.latency_seconds >= 0 and curve.bytes_per_second > 0)
