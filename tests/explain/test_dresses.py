"""A text that is known as it stands is known behind every prefix."""

from __future__ import annotations

import io

import pytest
from explain.measure import matcher
from explain.test_cases import LINES, text

from distcheck.explain.reading import whole_lines

PREFIXES = (
    "[rank3]: ",
    "[default0]:",
    "3: ",
    "node1: ",
    "10.0.0.5: ",
    "[1,3]<stderr>:",
    "(RayWorker pid=123, ip=10.0.0.1) ",
    "worker-1  | ",
    "[pod/w-0/pytorch] ",
    "2026-11-20T10:00:00.123Z stderr F ",
    "2026-11-20 10:00:00,123 ERROR [train.py:33] ",
    "2026-11-20 10:00:00.123 | ERROR    | train:main:33 - ",
    "ERROR:root:",
    "[2026-11-20 10:00:00,123] {train.py:33} ERROR - ",
    "(EngineCore_0 pid=17) ERROR 11-20 10:00:00 [core.py:33] ",
    "[rank3]:[E1120 10:00:00.123 x.cpp:12] ",
    "E1120 10:00:00.123456 99 x.py:12] ",
    "Nov 20 10:00:00 node1 slurmstepd[77]: ",
    "\x1b[31m",
    "    ",
    "│ ",
)


def seen(*lines):
    """Return the spellings that a log has, without the shapes of errors."""
    found = matcher().search(whole_lines(io.BytesIO("\n".join(lines).encode())), "job.log")
    return {id(sighting.spelling) for sighting in found if not sighting.spelling.fallback}


@pytest.fixture(scope="module")
def known():
    texts = [text(line).replace("«", "").replace("»", "") for line in LINES]
    return [(words, spellings) for words in texts if "\n" not in words and (spellings := seen(words))]


@pytest.mark.long
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_text_is_known_behind_a_prefix(known, prefix):
    # In pods a name without an address has an answer of its own.
    own = prefix.startswith("[pod/")
    behind = [(words, spellings, seen(prefix + words)) for words, spellings in known]
    assert [words for words, spellings, there in behind if not (there if own else spellings & there)] == []
