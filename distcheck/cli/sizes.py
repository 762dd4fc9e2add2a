"""Parses message sizes such as ``1M:64M:x2``."""

from __future__ import annotations

import re

from distcheck.facts.errors import UsageError

_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SMALLEST_BYTES = 4
_LARGEST_BYTES = 1 << 37
_DEFAULT_FACTOR = 4
_HOW = "write --sizes MIN:MAX or MIN:MAX:xFACTOR, for example 1M:64M:x2"


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes, ascending; K, M, G are powers of 1024 as in nccl-tests.

    Raises:
        UsageError: the text is not a valid size or range.
    """
    ends, _, factor_text = text.partition(":x")
    first, _, last = ends.partition(":")
    smallest = _size(first, text)
    largest = _size(last, text) if last else smallest
    factor = _DEFAULT_FACTOR
    if factor_text or ":x" in text:
        if not factor_text.isdecimal() or int(factor_text) < 2:
            raise UsageError(f"--sizes {text!r}: factor x{factor_text} must be a whole number of at least 2; {_HOW}")
        factor = int(factor_text)
    if smallest > largest:
        raise UsageError(f"--sizes {text!r}: the smallest size is larger than the largest; {_HOW}")
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def _size(text: str, whole: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--sizes {whole!r}: {text!r} is not a size; {_HOW}")
    size = int(match[1]) * _UNIT[match[2].upper()]
    if not _SMALLEST_BYTES <= size <= _LARGEST_BYTES:
        raise UsageError(f"--sizes {whole!r}: {text!r} is not between 4 bytes and 128G; {_HOW}")
    return size
