"""A wording that is known as it stands is known behind every prefix, and where a terminal wraps it."""

from __future__ import annotations

import io

import pytest
from explain.answered import rules
from explain.wordings import example

from distcheck.explain.known import known
from distcheck.explain.matching import Matcher
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
MOST_WITHOUT_AN_EXAMPLE = 12


def lines(spelling):
    """Return the lines of a log that has a wording; empty if no example of it was found."""
    words = example(spelling.pattern.pattern)
    above = [example(spelling.near.pattern)] if spelling.near else []
    if spelling.trace:
        above += [
            "Traceback (most recent call last):",
            '  File "x.py", line 3, in f',
            f"    {example(spelling.trace.pattern)}",
        ]
    log = [*above, words] if words and not spelling.only else []
    return log if is_known(Matcher([spelling]), log) else []


def is_known(matcher, log):
    return bool(matcher.search(whole_lines(io.BytesIO("\n".join(log).encode())), "job.log"))


@pytest.fixture(scope="module")
def examples():
    found = [(spelling, Matcher([spelling]), lines(spelling)) for spelling in known()]
    assert sum(not log for spelling, _, log in found if not spelling.only) <= MOST_WITHOUT_AN_EXAMPLE
    return [each for each in found if each[2]]


def forbids(spelling, prefix):
    return spelling.unless and spelling.unless.search(prefix)


@pytest.mark.long
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_wording_is_known_behind_a_prefix(examples, prefix):
    assert not [
        log
        for spelling, matcher, log in examples
        if not forbids(spelling, prefix) and not is_known(matcher, [prefix + line for line in log])
    ]


@pytest.mark.long
@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_a_wording_is_known_where_a_terminal_wraps_it(examples, share):
    unknown = []
    for spelling, matcher, log in examples:
        if spelling.fallback or len(log) > 1:  # a shape, which two lines may have that are none, or lines around it
            continue
        head = f"node1: 2026-11-20T10:00:00.123456789Z stderr F {log[0]}"
        at = len(head) - max(1, int(len(log[0]) * share))
        full = "x" * len(head[:at].encode())
        unknown += [] if is_known(matcher, [full, head[:at], head[at:]]) else [log[0]]
    assert not unknown


def test_a_space_at_which_a_terminal_wraps_a_line_may_be_lost():
    assert rules(
        f"{'x' * 54}\n[rank1]: RuntimeError: CUDA error: no kernel image is\navailable for execution on the device"
    )
