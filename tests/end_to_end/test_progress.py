"""What a person at a terminal sees while ranks are awaited and measured, and what a job log gets."""

from __future__ import annotations

import os
import pty
import re

import pytest

RUN = (
    "bandwidth",
    "--op",
    "all_reduce",
    "--sizes",
    "1M:1M",
    "--iters",
    "2",
    "--join-timeout",
    "60",
    "--timeout",
    "120",
)


def seen_on_a_terminal(start, *words, env=None, seen=lambda _shown: None):
    """Run with standard error on a terminal of 160 columns; return how it ended and all that was shown.

    `seen` gets what was shown so far.
    """
    ours, theirs = pty.openpty()
    try:
        running = start(*words, stderr=theirs, env={"TERM": "xterm", "COLUMNS": "160"} | (env or {}))
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            shown += more
            seen(shown.decode(errors="replace"))
        return running.wait(), shown.decode()
    finally:
        os.close(ours)


@pytest.mark.process
def test_a_terminal_shows_who_is_awaited_and_what_is_measured_and_is_clean_at_the_end(start, port):
    """Rank 1 comes when rank 0 has said that it waits for it."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    late = []

    def seen(shown):
        if "for rank 1" in shown and not late:
            late.append(start(*RUN, env=place | {"RANK": "1", "LOCAL_RANK": "1"}))

    ended, shown = seen_on_a_terminal(start, *RUN, env=place | {"RANK": "0", "LOCAL_RANK": "0"}, seen=seen)
    follower = late[0].wait()
    assert (ended.code, follower.code) == (0, 0)
    assert re.fullmatch(r"distcheck: PASS: .*; report: rank 0, node \S+, process \d+\n", follower.err)
    (first, *_), (last, *_) = (re.findall(each, shown) for each in (r"roll call .*?\r", r"collectives .*?\r"))
    assert re.search(r"1/2 ranks; waiting \d:\d\d:\d\d more for rank 1: not connected yet; deadline in 0:0", first)
    assert re.search(r"0/1 figures.*; deadline in \d:\d\d:\d\d", last)
    assert "all_reduce 1048576 B" in shown
    assert "1/1 figures" in shown
    assert shown.endswith("\x1b[2K"), "the line is taken away"
    assert "\n" not in shown
