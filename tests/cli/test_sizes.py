from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.cli.sizes import parse_sizes
from distcheck.facts.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1M:64M:x4", (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)),
        ("1M:64M", (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)),
        ("1M:5M:x2", (1 * MIB, 2 * MIB, 4 * MIB)),
        ("512K", (512 << 10,)),
        ("4:16:x2", (4, 8, 16)),
        ("1MiB:1mb", (MIB,)),
    ],
)
def test_ranges_are_read(text, sizes):
    assert parse_sizes(text) == sizes


@given(st.text(max_size=12))
def test_any_text_gives_sizes_or_a_usage_error(text):
    try:
        sizes = parse_sizes(text)
    except UsageError as error:
        assert "--sizes" in str(error)
    else:
        assert list(sizes) == sorted(set(sizes))
        assert all(4 <= size <= 1 << 37 for size in sizes)
