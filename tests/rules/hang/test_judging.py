"""Samples in, answer out: which rank holds up the others, where it is, and what the others wait in."""

from __future__ import annotations

import pytest
from made.running import (
    C10D,
    NATIVE,
    PACKAGES,
    PYTHON,
    blocked,
    busy,
    collective,
    rank,
    running,
    sleeper,
    thread,
    unreadable,
    waiter,
)
from msgspec.structs import replace

from distcheck.facts.hang import HangNode, Recorded, SystemCall, Unanswered
from distcheck.rules.hang.judging import answer

FUTEX = SystemCall("futex", libraries=NATIVE)
LOCK = SystemCall("futex", libraries=PYTHON)
OPEN = SystemCall("openat", "/mnt/data/shard-17.bin", libraries=PYTHON)
SELECT = f"{PACKAGES.rpartition('/')[0]}/selectors.py:415 select"
AUTOGRAD = f"{PACKAGES}/torch/autograd/graph.py:979 _engine_run_backward"
WAITERS = (waiter(0), waiter(1), waiter(3))


def seen(*ranks, **more):
    """Return the answer, the odd ranks with their lines, and the ranks that wait with their operations."""
    found = answer(running(*ranks, **more))
    odd = {s.process.rank: s.place.at for s in found.odd}
    return found.word, odd, {s.process.rank: s.operation for s in found.waiting}


ODD = {
    "sleeps": (sleeper(2), "data.py:41"),
    "opens a file": (blocked(2, OPEN), "data.py:41"),
    "D state": (blocked(2, OPEN, state="D", waits_in="nfs4_wait_bit_killable"), "data.py:41"),
    "stopped": (blocked(2, FUTEX, state="T", waits_in="do_signal_stop"), "data.py:41"),
    "a lock": (rank(2, "/home/me/train.py:12 step", call=LOCK), "train.py:12"),
    "a lock, syscall unreadable": (rank(2, "/home/me/train.py:12 step"), "train.py:12"),
    "the data loader": (
        blocked(2, SystemCall("poll", "pipe:[7]"), "/home/me/train.py:9 epoch", waits_in="poll_schedule_timeout"),
        "train.py:9",
    ),
    "a library of the user's": (
        rank(2, SELECT, f"{PACKAGES}/timm/data.py:5 get", "/home/me/a.py:3 main", call=OPEN),
        "a.py:3",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_rank_outside_of_the_collective_holds_up_the_others(name):
    odd, at = ODD[name]
    waiting = dict.fromkeys((0, 1, 3), "all_reduce")
    assert seen(*WAITERS, odd) == ("hung", {2: at}, waiting)


WAITS = {
    "DDP backward": (rank(0, AUTOGRAD, "/home/me/train.py:90 step", call=FUTEX), "backward"),
    "init": (
        rank(0, f"{C10D}:2169 _new_process_group_helper", f"{C10D}:1 init_process_group", "/home/me/t.py:3 main"),
        "init_process_group",
    ),
    "Work.wait, no frame of torch": (rank(0, "/home/me/train.py:91 step", call=FUTEX), "Work.wait"),
    "store.get, no frame of torch": (
        rank(
            0, "/home/me/train.py:91 step", waits_in="poll_schedule_timeout", call=SystemCall("poll", libraries=NATIVE)
        ),
        "the store",
    ),
    "object collective": (
        rank(0, *collective("all_gather")[:2], f"{C10D}:9 all_gather_object", "/home/me/t.py:3 main", call=FUTEX),
        "all_gather_object",
    ),
    "a thread that the main one joins": (
        rank(
            0,
            "/usr/lib/python3.11/threading.py:1112 join",
            "/home/me/train.py:5 main",
            call=LOCK,
            others=(thread(*collective("barrier"), main=False, name="Thread-1"),),
        ),
        "barrier",
    ),
    "synchronize of CUDA": (
        rank(
            0,
            f"{PACKAGES}/torch/cuda/__init__.py:9 synchronize",
            "/home/me/t.py:3 main",
            state="R",
            after={"run_seconds": 2.0},
        ),
        "cuda synchronize",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_rank_in_communication_waits(name):
    waits, operation = WAITS[name]
    assert seen(waits, sleeper(1)) == ("hung", {1: "data.py:41"}, {0: operation})


def test_rank_0_that_polls_the_store_it_hosts_at_init_is_a_waiter():
    polls = rank(
        0,
        f"{PACKAGES}/torch/distributed/rendezvous.py:199 _create_c10d_store",
        f"{C10D}:1 init_process_group",
        "/home/me/t.py:3 main",
        waits_in="hrtimer_nanosleep",
        call=SystemCall("clock_nanosleep", libraries=NATIVE),
        after={"switches": 590, "run_seconds": 0.01},
    )
    others = [waiter(n, "init_process_group", "/home/me/t.py:3 main") for n in (1, 3)]
    assert seen(polls, *others, sleeper(2))[:2] == ("hung", {2: "data.py:41"})


PROGRESS = {
    "computes": {"run_seconds": 1.9},
    "computes on a full machine": {"run_seconds": 0.26, "queued_seconds": 1.5},
    "reads": {"moved_bytes": 1 << 20},
    "its worker computes": {"children_seconds": 1.0},
    "its worker reads": {"children_bytes": 1 << 20},
    "a thread of it computes": {"others_seconds": 1.0},
    "a worker receives from the network": {"children_switches": 100},
    "a thread of it receives from the network": {"others_switches": 100},
    "went on": {"threads": (thread("/home/me/data.py:60 decode", "/home/me/data.py:41 load_shard"),)},
}


@pytest.mark.parametrize("name", PROGRESS)
def test_progress_outside_of_the_collective_is_slow_and_never_hung(name):
    before = {"moved_bytes": 0, "children_bytes": 0}
    first = replace(sleeper(2).moments[0], **before)
    last = replace(first, age_seconds=102.0, **PROGRESS[name])
    word, odd, _ = seen(*WAITERS, replace(sleeper(2), moments=(first, last)))
    assert (word, list(odd)) == ("slow", [2])


@pytest.mark.parametrize(
    "after",
    [
        {"switches": 42},
        {"threads": (thread("/home/me/data.py:43 load_shard"),)},
        {"run_seconds": 0.01, "queued_seconds": 1.9},
    ],
    ids=["switches", "another line of the same loop", "a full machine"],
)
def test_a_poll_is_no_progress(after):
    assert seen(*WAITERS, sleeper(2, after=after))[:2] == (
        "hung",
        {2: "data.py:41" if "threads" not in after else "data.py:43"},
    )


def test_a_full_pipe_that_is_emptied_is_progress():
    write = SystemCall("write", "pipe:[7]", libraries=PYTHON)
    assert seen(*WAITERS, blocked(2, write, after={"switches": 21}))[0] == "slow"
    assert seen(*WAITERS, blocked(2, write))[0] == "hung"


HEALTHY = {
    "steps": [waiter(n, after={"switches": 500, "run_seconds": 0.04}) for n in range(4)],
    "slow steps": [waiter(n, after={"switches": 2}) for n in range(4)],
    "all compute": [busy(n) for n in range(4)],
    "large collective": [waiter(n, after={"traffic_seconds": 0.4}) for n in range(4)],
    "slow network": [waiter(n, after={"traffic_bytes": 1 << 20 if n == 2 else 0}) for n in range(4)],
    "one computes, none waits": [busy(0), sleeper(1)],
    "idle server": [
        rank(0, "/usr/lib/python3.11/socket.py:294 accept", "/home/me/serve.py:9 main", waits_in="inet_csk_accept"),
        *(waiter(n, "broadcast") for n in (1, 2, 3)),
    ],
    "event loop": [
        rank(
            0,
            SELECT,
            "/usr/lib/python3.11/asyncio/base_events.py:1 BaseEventLoop._run_once",
            "/venv/lib/python3.11/site-packages/uvicorn/server.py:75 Server.run",
            "/home/me/serve.py:9 main",
            waits_in="do_epoll_wait",
            call=SystemCall("epoll_wait", libraries=PYTHON),
        ),
        *(waiter(n, "broadcast") for n in (1, 2, 3)),
    ],
    "GPU: the host is ahead": [
        waiter(n, cuda=True, state="R", after={"run_seconds": 2.0, "others_seconds": 0.5, "switches": 9})
        for n in range(2)
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_is_not_hung(name):
    assert seen(*HEALTHY[name])[:2] == ("not hung", {})


LOOP = ("/usr/lib/python3.11/asyncio/base_events.py:1 BaseEventLoop._run_once", "/home/me/data.py:9 fetch")
IN_A_LOOP = rank(2, SELECT, *LOOP, waits_in="do_epoll_wait")


def test_an_event_loop_whose_data_others_wait_for_may_be_a_server_or_not():
    found = answer(running(IN_A_LOOP, *(waiter(n, "broadcast") for n in (0, 1, 3))))
    assert (found.word, [s.process.rank for s in found.odd]) == ("cannot tell", [2])
    assert "event loop at data.py:9" in found.reason


@pytest.mark.parametrize("odd", [IN_A_LOOP, blocked(2, SystemCall("accept4", "a socket at 127.0.0.1:5678"))])
def test_a_server_serves_nobody_who_waits_for_it_in_a_collective_of_all(odd):
    found = answer(running(odd, *WAITERS))
    assert (found.word, [s.process.rank for s in found.odd], found.longer) == ("hung", [2], True)


@pytest.mark.parametrize(("wrote", "word"), [(544, "not hung"), (0, "cannot tell")])
def test_ranks_that_all_sleep_and_took_a_step_in_between_are_not_hung(wrote, word):
    first = replace(sleeper(0).moments[0], moved_bytes=0)
    asleep = (first, replace(first, age_seconds=110.0, moved_bytes=wrote))
    assert answer(running(*(replace(sleeper(n), moments=asleep) for n in range(3)))).word == word


def test_the_line_of_an_installed_program_is_in_its_own_package():
    app, get = "/venv/bin/my-train:8 <module>", "/usr/lib/python3.11/queue.py:171 Queue.get"
    data, main = (f"{PACKAGES}/my_project/{each}" for each in ("data.py:13 load", "train.py:9 main"))
    lightning = f"{PACKAGES}/lightning/loops.py:3 advance"
    assert seen(*WAITERS, rank(2, get, data, lightning, main, app, call=LOCK))[1] == {2: "data.py:13"}
    first = rank(2, data, main, app, call=LOCK)
    later = replace(first.moments[1], threads=(thread(data, main.replace(":9", ":12")),))
    assert seen(*WAITERS, replace(first, moments=(first.moments[0], later)))[0] == "slow"


def test_the_fewest_at_another_operation_or_line_are_named_and_of_a_tie_both_sides():
    other = "/home/me/train.py:92 step"
    assert seen(*WAITERS, waiter(2, "barrier", other)) == (
        "hung",
        {2: "train.py:92"},
        dict.fromkeys((0, 1, 3), "all_reduce"),
    )
    assert seen(*WAITERS, waiter(2, line=other))[:2] == ("hung", {2: "train.py:92"})
    tie = seen(waiter(0), waiter(1), waiter(2, "barrier", other), waiter(3, "barrier", other))
    assert tie[:2] == ("hung", {0: "train.py:88", 1: "train.py:88", 2: "train.py:92", 3: "train.py:92"})


def test_the_end_of_a_chain_is_named():
    chain = [waiter(n, "recv", "/home/me/pipe.py:30 forward") for n in (1, 2, 3)]
    assert seen(sleeper(0), *chain)[:2] == ("hung", {0: "data.py:41"})


def test_ranks_without_a_process_are_missing():
    found = answer(running(*WAITERS, world=4))
    assert (found.word, found.missing, found.odd) == ("hung", (2,), ())
    dead = replace(sleeper(2), moments=(sleeper(2).moments[0], replace(sleeper(2).moments[1], state="X", threads=None)))
    assert answer(running(*WAITERS, dead, local=False)).missing == (2,)


def test_a_job_that_has_ended_or_of_which_one_rank_lingers_is_not_hung():
    ended = replace(
        sleeper(0), moments=(sleeper(0).moments[0], replace(sleeper(0).moments[1], state="Z", threads=None))
    )
    assert answer(running(ended)).reason == "all ranks have ended"
    assert (answer(running(ended, sleeper(1))).word, answer(running(ended, busy(1))).word) == (
        "cannot tell",
        "not hung",
    )


def test_ranks_that_may_be_on_other_nodes_are_not_missing():
    found = answer(running(*WAITERS, world=4, local=False))
    assert (found.word, found.missing, found.unseen) == ("cannot tell", (), (2,))
    assert "--hosts" in found.reason
    assert answer(running(*WAITERS, sleeper(2), world=8, local=False)).word == "hung"
    silent = (HangNode("node1"), HangNode("node2", problem="ssh: connection refused"))
    found = answer(running(*WAITERS, world=4, nodes=silent))
    assert (found.word, found.why, found.unseen) == ("hung", "silent", (2,))
    stepping = (waiter(n, after={"switches": 9}) for n in (0, 1, 3))
    assert answer(running(*stepping, world=4, nodes=silent)).word == "not hung"


def test_a_rank_that_its_node_should_have_is_missing_whatever_other_nodes_say():
    found = answer(running(*WAITERS, world=8, local=False, ranks_per_node=4))
    assert (found.word, found.missing, found.unseen) == ("hung", (2,), (4, 5, 6, 7))


def test_a_cut_connection_is_the_network():
    cut = Unanswered("10.0.0.1:4000", "10.0.0.2:5000", 4, 1000)
    found = answer(running(*(waiter(n, unanswered=(cut,) if n in {0, 3} else ()) for n in range(4))))
    assert (found.word, found.why, [s.process.rank for s in found.odd]) == ("hung", "network", [0, 3])


def test_all_at_one_line_get_a_longer_look_and_are_hung():
    found = answer(running(*(waiter(n) for n in range(4))))
    assert (found.word, found.why, found.odd, found.longer) == ("hung", "alike", (), True)


def test_a_circle_of_ranks_that_receive_is_the_program_s():
    assert seen(*(waiter(n, "recv") for n in range(3)))[:2] == ("hung", dict.fromkeys(range(3), "train.py:88"))


def test_as_many_zombies_as_ranks_without_a_process_are_these_ranks():
    nodes = (HangNode("node1", ended=(77,)),)
    assert answer(running(*WAITERS, world=4, local=False, nodes=nodes)).missing == (2,)
    assert answer(running(*WAITERS, world=5, local=False, nodes=nodes)).missing == ()


@pytest.mark.parametrize("odd", [sleeper(2), blocked(2, OPEN), rank(2, "/home/me/t.py:1 f", call=LOCK)])
def test_what_may_go_on_gets_a_longer_look(odd):
    assert answer(running(*WAITERS, odd)).longer
    assert not answer(running(*WAITERS, waiter(2, "barrier"))).longer
    assert answer(running(waiter(0, "init_process_group"), world=2)).longer  # the other may be about to start
    assert not answer(running(waiter(0), world=2)).longer


def test_without_the_right_to_attach_proc_alone_names_the_rank():
    hidden = [unreadable(each) for each in WAITERS]
    assert seen(*hidden, unreadable(sleeper(2)))[:2] == ("hung", {2: ""})
    assert seen(*hidden, unreadable(busy(2)))[:2] == ("slow", {2: ""})
    assert seen(*hidden, unreadable(ODD["the data loader"][0]))[:2] == ("hung", {2: ""})


@pytest.mark.parametrize(
    "ranks",
    [
        [unreadable(waiter(n)) for n in range(4)],
        [unreadable(waiter(n), wchan=False) for n in range(4)],
        [unreadable(busy(0), wchan=False), *(unreadable(waiter(n), wchan=False) for n in (1, 2, 3))],
        [unreadable(rank(0, after={"children_seconds": 1.0, "switches": 9}), wchan=False)],
        [*(unreadable(sleeper(n)) for n in (0, 1)), *(unreadable(waiter(n)) for n in (2, 3))],
        [sleeper(n) for n in range(4)],
        [],
    ],
    ids=[
        "all in a futex",
        "nothing readable",
        "one runs",
        "only its children run",
        "as many sleep as wait",
        "all sleep",
        "no rank",
    ],
)
def test_what_is_unknown_is_never_not_hung(ranks):
    assert answer(running(*ranks)).word == "cannot tell"


def test_a_gpu_job_in_which_all_spin_at_one_line_cannot_be_told():
    spins = [busy(n, share=1.0, cuda=True) for n in range(4)]
    assert answer(running(*spins)).word == "cannot tell"
    assert seen(*spins[:3], sleeper(3))[:2] == ("hung", {3: "data.py:41"})


def test_a_program_that_has_ended_is_named_by_the_thread_that_keeps_it():
    ended = rank(
        2,
        "/usr/lib/python3.11/threading.py:1590 _shutdown",
        call=LOCK,
        others=(
            thread("/usr/lib/python3.11/threading.py:320 wait", "/home/me/watch.py:7 watch", main=False, name="watch"),
        ),
    )
    found = answer(running(*WAITERS, ended))
    assert (found.odd[0].place.at, found.odd[0].place.thread, found.odd[0].place.ended) == ("watch.py:7", "watch", True)


ALIKE = [waiter(n) for n in range(4)]
SPINS = [busy(n, share=1.0, cuda=True) for n in range(4)]


@pytest.mark.parametrize(
    ("ranks", "named", "waiting", "odd"),
    [
        (ALIKE, (2,), (0, 1, 2, 3), [2]),
        (SPINS, (1,), (0, 2, 3), [1]),
        ([waiter(0), waiter(1), *(waiter(n, "barrier") for n in (2, 3))], (3,), (0, 1, 2, 3), [3]),
        (ALIKE, (2,), (0, 1, 3), []),
        (ALIKE, (0, 1, 2, 3), (0, 1, 2, 3), []),
        (ALIKE, (7,), (0, 1, 2, 3), []),
        ([*WAITERS, sleeper(2)], (1,), (0, 1, 3), [2]),
        ([*WAITERS, busy(2)], (1,), (0, 1, 3), [2]),
    ],
    ids=[
        "all at one line", "all wait for their GPUs", "two and two", "a dump without a call of a rank that waits",
        "all are named", "a rank that is not there", "the stacks name one", "progress",
    ],
)  # fmt: skip
def test_dumps_of_the_flight_recorder_count_where_stacks_do_not_decide(ranks, named, waiting, odd):
    found = answer(running(*ranks, recorded=Recorded("rank 2 is behind", named, waiting)))
    assert [s.process.rank for s in found.odd] == odd
    assert bool(found.recorded) == (odd != [] and odd == list(named))
