"""Whom each stage waits for, and why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distcheck.run import waiting


def follower(name, *ranks, heard=0.0, ready=True, gone=False):
    return SimpleNamespace(
        report=SimpleNamespace(node=SimpleNamespace(name=name)), ranks=ranks, heard_at=heard, gone=gone,
        ready=SimpleNamespace(is_set=lambda: ready),
    )  # fmt: skip


def rank(number, *, joined=True, over=False):
    return SimpleNamespace(placement=SimpleNamespace(rank=number), joined=joined or None, over=over)


def local(*ranks, imported=True):
    return SimpleNamespace(ranks=ranks, imported=SimpleNamespace(done=lambda: imported))


def server(*missing, elsewhere=None):
    return SimpleNamespace(
        missing=lambda most: missing[:most], elsewhere=elsewhere or {}, present=8 - len(missing), world_size=8
    )


def test_the_roll_call_names_the_missing_ranks():
    view = waiting.roll_call(server(3, 6, 7), until=9.0)
    assert (view.done, view.of, view.unit, view.awaited, view.until) == (5, 8, "ranks", "ranks 3,6-7", 9.0)
    assert view.why == "not connected yet"
    assert waiting.roll_call(server(7), 9.0).awaited == "rank 7"
    assert waiting.roll_call(server(), 9.0).awaited == ""


def test_the_reminder_names_the_missing_ranks_if_any():
    assert waiting.roll_call_reminder(server(3, 6, 7), 9.6) == "waiting for ranks 3,6-7; the roll call closes in 10 s"
    assert waiting.roll_call_reminder(server(7), -1.0) == "waiting for rank 7; the roll call closes in 0 s"
    assert waiting.roll_call_reminder(server(), 9.0) == "all ranks joined; the roll call closes in 9 s"


def test_a_rank_that_looks_elsewhere_is_the_reason():
    lost = {6: "node9:29500", 2: "node9:29501"}
    assert waiting.roll_call(server(6, 7, elsewhere=lost), 9.0).why == "rank 6 looks for node9:29500"
    assert waiting.roll_call(server(7, elsewhere=lost), 9.0).why == "not connected yet", "they are here by now"


def test_followers_that_sent_nothing_since_are_awaited():
    each = [follower("node2", 2, 3, heard=5.0), follower("node3", 4, 5), follower("node4", 6, gone=True)]
    view = waiting.followers("peers", each, 4.0, why="testing ports", until=9.0)
    assert (view.done, view.of, view.awaited) == (2, 3, "node3 (ranks 4-5)")


def test_many_processes_are_counted():
    text = waiting.processes([follower(f"node{n}", n) for n in range(1, 9)])
    assert text == "node1 (rank 1), node2 (rank 2), node3 (rank 3) and 5 more"


NODE2 = follower("node2", 1)
IMPORTING = follower("node2", 1, ready=False)
HEARD = follower("node3", 2, heard=5.0)
JOINING = rank(1, joined=False)


@pytest.mark.parametrize(
    ("here", "each", "done", "awaited", "why"),
    [
        (local(rank(0), imported=False), [], 0, "this node", "importing torch"),
        (local(rank(0)), [IMPORTING, HEARD], 0, "node2 (rank 1)", "importing torch"),
        (local(rank(0)), [IMPORTING], 1, "", ""),
        (local(rank(0), JOINING), [], 0, "rank 1", "not in the process group"),
        (local(JOINING, JOINING), [], 0, "", ""),
        (local(rank(0, over=True)), [NODE2, HEARD], 3, "node2 (rank 1)", "no results yet"),
    ],
)
def test_the_collectives_name_the_ranks_that_the_others_wait_for(here, each, done, awaited, why):
    figures = waiting.FigureCount(3, lambda: 0.0, lambda: None)
    figures.step("all_reduce 1048576 B", done)
    view = waiting.measuring(here, each, 4.0, figures)
    assert (view.awaited, view.why, view.done, view.of) == (awaited, why, done, 3)


def test_the_time_left_follows_from_the_figures_so_far():
    now = [100.0]
    figures = waiting.FigureCount(4, lambda: now[0], lambda: None)
    figures.step("all_reduce 1 B", 0)
    assert figures.doing() == "all_reduce 1 B"
    now[0] = 130.0
    figures.step("all_reduce 4 B", 3)
    assert figures.doing() == "all_reduce 4 B, about 0:00:10 to go"
    figures.step("device test", 4)
    assert figures.doing() == "device test"
