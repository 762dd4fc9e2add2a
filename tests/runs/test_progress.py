"""The live line and the lines per stage, on values."""

from __future__ import annotations

import io

import pytest

from distcheck.run import progress
from distcheck.run.progress import Progress, StageView, line

LATE = StageView("roll call", done=6, of=8, unit="ranks", awaited="ranks 6-7", why="not connected yet", until=113.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        raise OSError("no descriptor: not the terminal of this session")


@pytest.fixture
def shown(monkeypatch):
    """Make stderr a terminal, or a file, and return what was written to it."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")

    def made(stream):
        monkeypatch.setattr(progress.sys, "stderr", stream)
        return stream

    return made


def test_the_live_line_has_stage_ranks_who_is_awaited_why_and_the_deadlines():
    assert line(LATE, now=100.0, deadline=148.0, columns=160) == (
        "distcheck: roll call [############....] 6/8 ranks; waiting 0:00:13 more for ranks 6-7: not connected yet; "
        "deadline in 0:00:48"
    )


def test_a_stage_that_waits_for_nobody_shows_what_it_does():
    text = line(
        StageView("collectives", "all_reduce 1048576 B", 1, 3, "figures"), now=1.0, deadline=3662.0, columns=120
    )
    assert text == "distcheck: collectives [#####...........] 1/3 figures, all_reduce 1048576 B; deadline in 1:01:01"


@pytest.mark.parametrize("columns", [10, 60, 90, 300])
def test_a_long_line_is_cut_before_its_deadline(columns):
    text = line(LATE._replace(awaited="node1, " * 40), now=100.0, deadline=148.0, columns=columns)
    assert len(text) <= columns
    assert columns < 60 or text.endswith("; deadline in 0:00:48")
    assert columns < 90 or "waiting" in text


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (120, " 6/8 ranks; waiting 0:00:13 more for ranks 6-7: not connected yet; deadline in 0:00:48"),
        (100, " 6/8 ranks; waiting 0:00:13 more for ranks 6-7; deadline in 0:00:48"),
        (80, " 6/8 ranks; waiting 0:00:13 more for ranks 6-7"),
    ],
)
def test_a_narrow_line_loses_the_bar_first_and_who_is_awaited_last(columns, shown):
    assert line(LATE, now=100.0, deadline=148.0, columns=columns) == f"distcheck: roll call{shown}"


def test_a_name_moves_no_cursor(shown):
    stream = shown(io.StringIO())
    Progress(lambda: 148.0, quiet=False).say("node\x1b[2J\n1")
    assert stream.getvalue() == "distcheck: node?[2J?1\n"
    assert "\x1b" not in line(LATE._replace(awaited="\x1b[2J"), now=0.0, deadline=1.0, columns=200)


def test_elsewhere_each_stage_is_one_line(shown):
    stream = shown(io.StringIO())
    run = Progress(lambda: 148.0, quiet=False)
    run.begin("", lambda: LATE)
    run.begin("roll call: 6 of 8 ranks joined", lambda: LATE)
    run.draw(now=True)
    run.begin("peers: 2 nodes", lambda: LATE)
    run.close()
    assert stream.getvalue() == "distcheck: roll call: 6 of 8 ranks joined\ndistcheck: peers: 2 nodes\n"


def test_a_terminal_shows_the_view_of_each_moment_and_is_clean_at_the_end(shown):
    stream = shown(Terminal())
    run, done = Progress(lambda: 148.0, quiet=False), [6]
    run.begin("roll call: a line for logs", lambda: LATE._replace(done=done[0]))
    done[0] = 7
    run.draw()
    assert "7/8" not in stream.getvalue(), "drawn a moment ago"
    run.draw(now=True)
    run.say("a line that stays")
    run.close()
    text = stream.getvalue()
    assert text.index("6/8") < text.index("7/8") < text.index("a line that stays\n")
    assert "a line for logs" not in text
    assert text.endswith("\r\x1b[2K")
    assert all(part.count("\n") == part.endswith("stays\n") for part in text.split("\r\x1b[2K"))


@pytest.mark.parametrize(("quiet", "terminal", "term"), [(True, True, "xterm"), (False, False, "xterm"), (False, True, "dumb")])  # fmt: skip # noqa: E501
def test_where_no_line_can_be_redrawn_none_is(shown, monkeypatch, quiet, terminal, term):
    monkeypatch.setenv("TERM", term)
    stream = shown(Terminal())
    run = Progress(lambda: 148.0, quiet=quiet, terminal=terminal)
    run.begin("peers: 2 nodes", lambda: LATE)
    run.close()
    assert stream.getvalue() == ("" if quiet else "distcheck: peers: 2 nodes\n")


def test_a_closed_stderr_ends_no_run(shown):
    stream = shown(Terminal())
    run = Progress(lambda: 148.0, quiet=False)
    stream.close()
    run.begin("peers", lambda: LATE)
    run.say("lost")
    run.close()
    shown(None)
    Progress(lambda: 148.0, quiet=False).say("lost")
