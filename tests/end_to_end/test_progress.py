"""What a person at a terminal sees while something is measured, and what a pipe never gets."""

from __future__ import annotations

import os
import pty
import re

RUN = ("bandwidth", "--nproc", "2", "--op", "all_reduce", "--sizes", "1M:16M", "--time-limit", "3")
SHORT = ("bandwidth", "--nproc", "2", "--op", "all_reduce", "--sizes", "64K:64K", "--iters", "5")


def seen_on_a_terminal(start, *words):
    """Run with standard error on a terminal of 120 columns; return how it ended and all that was shown."""
    ours, theirs = pty.openpty()
    try:
        running = start(*words, stderr=theirs, env={"TERM": "xterm", "COLUMNS": "120"})
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
        return running.wait(), shown.decode()
    finally:
        os.close(ours)


def test_a_terminal_shows_what_is_measured_and_the_time_left_and_is_clean_at_the_end(start):
    ended, shown = seen_on_a_terminal(start, *RUN)
    assert ended.code == 0
    assert "all_reduce 1048576 B" in shown
    assert "all_reduce 16777216 B" in shown
    assert re.search(r"[0-3]/3", shown), "how many of the figures are there"
    assert re.search(r"\d:\d\d:\d\d|-:--:--", shown), "the time left"
    assert shown.rstrip().endswith("\x1b[2K"), "the line is taken away"


def test_quiet_shows_nothing(start):
    ended, shown = seen_on_a_terminal(start, *SHORT, "--quiet")
    assert (ended.code, shown) == (0, "")


def test_a_pipe_gets_no_progress(distcheck):
    ended = distcheck(*SHORT)
    assert (ended.code, ended.err) == (0, "")
