"""How long `distcheck hang` looks before it gives an answer that may change."""

from __future__ import annotations

import signal

import pytest
from made.running import sleeper, waiter
from msgspec.structs import replace

from distcheck.facts.asked import Asked
from distcheck.facts.hang import HangNode, RunningJob
from distcheck.launch.remote import frames
from distcheck.launch.remote.spec import Outside
from distcheck.probe.hang.look import Wanted
from distcheck.rules.hang.judging import answer, answer_of
from distcheck.run import hang, hang_nodes
from distcheck.run.interrupts import Interruption


def looks(monkeypatch, ranks, *, each_takes, stop=None):
    """Return for how long each look was meant to last, and the job; a look lasts that and `each_takes` by the clock."""
    clock, meant, stop = [0.0], [], stop or Interruption()

    def look(wanted):
        meant.append(wanted.seconds)
        start = clock[0]
        clock[0] += wanted.seconds + each_takes
        seen = []
        for each in ranks:
            first, last = each.moments
            ages = (100 + start, 100 + start + wanted.seconds)
            seen.append(
                replace(each, moments=(replace(first, age_seconds=ages[0]), replace(last, age_seconds=ages[1])))
            )
        return [RunningJob("job", world_size=len(ranks), local=True, nodes=(HangNode("node1"),), ranks=tuple(seen))]

    monkeypatch.setattr(hang.time, "monotonic", lambda: clock[0])
    (found,) = hang.watched(Asked(command="hang", looks=("hang",)), Wanted(2.0), look, stop)
    return meant, found


ASLEEP = [sleeper(2), *(waiter(n) for n in (0, 1, 3))]


@pytest.mark.parametrize("each_takes", [0.1, 3.0, 12.0])
def test_a_rank_that_may_go_on_is_seen_for_ten_seconds_however_long_a_look_takes(monkeypatch, each_takes):
    meant, found = looks(monkeypatch, ASLEEP, each_takes=each_takes)
    first, *_, last = (m.age_seconds for m in found.hang.ranks[0].moments)
    assert last - first >= hang.LONGEST_SECONDS - 0.5
    assert (answer_of(found).word, len(meant) > 1) == ("hung", True)


def test_an_answer_that_cannot_change_is_given_after_the_first_look(monkeypatch):
    ranks = [waiter(2, "barrier", "/home/me/train.py:92 step"), *(waiter(n) for n in (0, 1, 3))]
    meant, found = looks(monkeypatch, ranks, each_takes=0.1)
    assert (answer_of(found).word, meant) == ("hung", [2.0])


def test_a_signal_ends_a_pause_and_no_longer_look_begins(monkeypatch):
    stop = Interruption()
    stop.note(signal.SIGINT)
    stop.pause(3600)
    meant, found = looks(monkeypatch, ASLEEP, each_takes=0.1, stop=stop)
    assert (meant, found.interrupted, len(found.hang.ranks)) == ([2.0], signal.SIGINT, 4)


def test_a_node_that_does_not_answer_again_keeps_what_it_said():
    before = RunningJob(
        "job", nodes=(HangNode("node1"), HangNode("node2")), ranks=(waiter(0), sleeper(1, node="node2"))
    )
    after = replace(before, nodes=(HangNode("node1"), HangNode("node2", "no answer in time")), ranks=(waiter(0),))
    found = hang.joined(before, after)
    assert [(r.rank, len(r.moments)) for r in found.ranks] == [(0, 4), (1, 2)]
    assert [node.problem for node in found.nodes] == ["", ""]


@pytest.mark.parametrize(
    ("asked", "ranks", "per_node", "missing", "unseen"),
    [
        (1, (0, 1), 2, (), (2, 3)),
        (1, (0, 1), None, (), (2, 3)),
        (1, (1,), None, (), (0, 2, 3)),
        (2, (0, 1, 2), 2, (3,), ()),
        (2, (0, 1, 2), None, (3,), ()),
        (2, (1, 3), None, (0, 2), ()),
    ],
)
def test_a_rank_is_missing_only_if_the_nodes_that_were_asked_hold_the_whole_job(
    asked, ranks, per_node, missing, unseen
):
    seen = []
    for node in range(asked):
        own = (replace(waiter(n, node=f"node{node}"), local_rank=n % 2) for n in ranks if n // 2 == node)
        seen.append(RunningJob("job", 4, per_node, nodes=(HangNode(f"node{node}"),), ranks=tuple(own)))
    (found,) = hang_nodes.merged(seen, [])
    assert (answer(found).missing, answer(found).unseen) == (missing, unseen)


def test_of_an_engine_on_several_nodes_the_workers_of_the_others_are_not_missing():
    workers = tuple(waiter(n, node="node2", numbered="title") for n in (2, 3))
    seen = RunningJob("vllm of process 10", 4, launcher="vllm", nodes=(HangNode("node2"),), ranks=workers)
    found, other = hang_nodes.merged([seen, replace(seen, name="vllm of process 11", nodes=(HangNode("node1"),))], [])
    assert (answer(found).missing, answer(other).unseen) == ((), (0, 1))


def test_a_thousand_nodes_are_heard_while_they_answer_and_the_others_are_not_waited_for(monkeypatch):
    clock, silent = [0.0], {f"node{n}" for n in range(1000, 1024)}

    def run(commands, heard, wish, **_):
        for number, command in enumerate(commands):  # the logins begin one after the other
            clock[0] += 0.05
            assert wish() == "go on"
            if command.key not in silent:
                ranks = [waiter(8 * number + n, node=command.key) for n in range(8)]
                job = RunningJob("job", 8192, nodes=(HangNode(command.key),), ranks=tuple(ranks))
                for line in frames.encode(f"{number:08x}", 0, frames.Seen((job,))):
                    heard.line(command.key, line, error=False)
        while wish() != "end":
            clock[0] += 0.1

    monkeypatch.setattr(hang_nodes.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(hang_nodes.engine, "run", run)
    hosts = tuple(f"node{n}" for n in range(1024))
    launch = Outside("ssh", hosts, (1,) * 1024, multiplies=True, master_addr="", master_port=0, python="python3")
    (found,) = hang_nodes.look(hang_nodes.JobNodes(launch), Wanted(2.0), 110.0, Interruption())
    assert {node.name for node in found.nodes if node.problem == "no answer in time"} == silent
    assert (len(found.ranks), len(found.nodes), answer(found).why) == (8000, 1024, "silent")
    assert 1024 * 0.05 < clock[0] < 60
