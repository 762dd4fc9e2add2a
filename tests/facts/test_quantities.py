import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.quantities import count, duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.6, "0.6 s"), (0.049, "0.049 s"), (1, "1 s"), (2.44, "2.4 s"), (9.96, "10 s"), (3600.4, "3600 s")],
)
def test_a_short_duration_is_never_rounded_to_0_seconds(seconds, text):
    assert duration(seconds) == text


BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1_500_000, "1.4305 MiB"),
        (16 << 20, "16 MiB"),
        (8 << 30, "8 GiB"),
        (100 << 40, "102400 GiB"),
    ],
)
def test_a_size_is_in_the_largest_binary_unit_that_it_reaches(size_bytes, text):
    assert size(size_bytes) == text


@pytest.mark.parametrize(("digits", "text"), [(2, "1000 KiB"), (3, "1020 KiB"), (5, "1021.2 KiB")])
def test_a_size_is_rounded_to_its_digits_and_never_has_an_exponent(digits, text):
    assert size(1_045_700.5, digits) == text


@given(st.integers(0, 1 << 50))
def test_a_size_is_off_by_no_more_than_its_digits(size_bytes):
    number, unit = size(size_bytes).split()
    assert float(number) * BYTES[unit] == pytest.approx(size_bytes, rel=5e-5)


def test_only_one_thing_is_singular():
    assert [count(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
