"""The search for a bad node over a real roll call: followers that behave, leave, fall silent, or import forever."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from distcheck.collectives.plan import Timing
from distcheck.facts.asked import Asked
from distcheck.facts.job import Job
from distcheck.facts.rank import RankRun
from distcheck.rollcall import framing, protocol
from distcheck.rollcall.protocol import Halt, Ready, RunReport, StartTrial, StoreAt
from distcheck.run import group_tests, search
from distcheck.run.progress import Progress

FOLLOWERS = (1, 2, 3, 4)


def ranks_of(number):
    """Return the two ranks of a follower; rank 0 belongs to none."""
    return 2 * number - 1, 2 * number


def job_of_followers(report):
    told = [report(f"follower {n}", *ranks_of(n), node=f"node{n}") for n in FOLLOWERS]
    ranks = [replace(r, placement=replace(r.placement, local_rank=n)) for t in told for n, r in enumerate(t.ranks)]
    return Job(
        distcheck="0.1.0", run="run", asked=Asked(command="isolate", looks=("isolation",)),
        nodes=tuple(t.node for t in told), processes=tuple(t.process for t in told), ranks=tuple(ranks),
    )  # fmt: skip


async def attend(leader, number, does, *, ready=True):
    """Join as the follower of one node, and run each trial as `does` says for its number and node count."""
    ranks = ranks_of(number)
    connection = (await leader.come(f"follower {number}", *ranks)).connection
    if ready:
        connection.say(Ready())
    while True:
        word = await framing.read(connection.reader, protocol.leader_decoder)
        if isinstance(word, Halt):
            stalled = dict.fromkeys(ranks, RankRun(1, "all_reduce", "stalled"))
            connection.say(RunReport(stalled, (), trial=word.trial))
        if not isinstance(word, StartTrial):
            continue
        (first, size), _ = word.parts.values()
        what = does(word.number, size // 2)
        if what == "leaves":
            connection.writer.close()
            return
        if what == "is silent":
            await asyncio.sleep(600)
        if what == "hangs":
            continue
        if first == 0:
            connection.say(StoreAt(word.number, 1))
        connection.say(report_of_trial(ranks, word, what))


def report_of_trial(ranks, trial, what):
    if what == "dies":
        run = RankRun(1, "all_reduce", "died", "was killed by SIGKILL")
        return RunReport(dict.fromkeys(ranks, run), (), trial=trial.number)
    figures = [(rank, timing(op, 0.01)) for op in trial.plan.operations for rank in ranks]
    with_rails = "send_recv" in trial.plan.operations
    if what == "has a slow rail" and with_rails:
        figures[-1] = (ranks[-1], timing("send_recv", 0.05))
    wrong = {"send_recv": 3} if what == "has a wrong rail" and with_rails else {}
    runs = {ranks[0]: RankRun(1, "done", "done"), ranks[1]: RankRun(1, "done", "done", wrong=wrong)}
    return RunReport(runs, tuple(figures), trial=trial.number)


def timing(op, seconds):
    return Timing(op, 1 << 20, "float32", 1, (seconds,), "time")


@pytest.fixture
def searched(leading, live, report, monkeypatch):
    """Search among four followers; return the result and the processes noted as lost."""
    monkeypatch.setattr(group_tests, "_LEAST_SECONDS", 1.0)
    monkeypatch.setattr(group_tests, "_LAST_WORDS_SECONDS", 0.5)

    def searched(does, *, seconds=60.0, late=(), backend="gloo"):
        lost: dict[str, str] = {}

        async def main():
            async with leading(1 + 2 * len(FOLLOWERS)) as leader:
                followers = [
                    asyncio.ensure_future(attend(leader, n, lambda *at, n=n: does(n, *at), ready=n not in late))
                    for n in FOLLOWERS
                ]
                assert await leader.server.wait_for_all(10)
                job, until = job_of_followers(report), time.monotonic() + seconds
                record = SimpleNamespace(
                    job=lambda: job,
                    followers=tuple(leader.server.followers),
                    note_silent=lambda _, uids, what: lost.update(dict.fromkeys(uids, what)),
                )
                run = SimpleNamespace(
                    uid="leader", local=None, record=record, asked=job.asked, say=lambda _: None,
                    progress=Progress(lambda: until, quiet=True),
                    remaining=lambda reserve=0.0: max(0.0, until - time.monotonic() - reserve),
                )  # fmt: skip
                found = await search.search(run, leader.server, backend)
                for follower in followers:
                    follower.cancel()
                await asyncio.gather(*followers, return_exceptions=True)
                return found

        return live(main()), set(lost)

    return searched


def test_well_behaved_followers_are_healthy(searched):
    found, lost = searched(lambda *_: "done")
    assert (found.kind, found.untested, lost) == ("healthy", (), set())


def test_a_follower_whose_ranks_die_is_the_bad_one(searched):
    found, lost = searched(lambda n, *_: "dies" if n == 3 else "done")
    assert ([c.nodes for c in found.culprits], found.undecided, lost) == ([("node3",)], (), set())
    assert found.culprits[0].certain


@pytest.mark.long
def test_a_follower_whose_ranks_hang_with_others_is_the_bad_one(searched):
    found, lost = searched(lambda n, _, nodes: "hangs" if n == 2 and nodes > 1 else "done")
    assert ([c.nodes for c in found.culprits], lost) == ([("node2",)], set())


@pytest.mark.long
def test_culprits_found_before_the_time_limit_are_named_and_the_rest_is_unknown(searched):
    def does(n, number, nodes):
        return "dies" if n == 3 and nodes == 1 else "hangs" if number > 3 else "done"

    found, _ = searched(does, seconds=9.5)
    assert (found.kind, [c.nodes for c in found.culprits]) == ("ended", [("node3",)])
    assert not any("node3" in s.nodes for s in found.undecided)
    assert found.sentence.startswith("time limit reached; node3 fails alone")


@pytest.mark.long
@pytest.mark.parametrize("does", ["leaves", "is silent"])
@pytest.mark.parametrize("which", [1, 4])
@pytest.mark.parametrize("trial", [1, 2])
def test_a_follower_lost_during_the_search_is_not_blamed(searched, does, which, trial):
    found, lost = searched(lambda n, number, _: does if n == which and number >= trial else "done")
    assert (found.culprits, found.undecided, found.boundaries) == ((), (), ())
    assert (found.untested, lost) == ((f"node{which}",), {f"follower {which}"})


@pytest.mark.long
def test_nodes_without_torch_in_time_are_left_out_and_not_blamed(searched):
    found, lost = searched(lambda n, *_: "hangs" if n == 4 else "done", seconds=16.0, late=[4])
    assert (found.culprits, found.undecided, found.untested, lost) == ((), (), ("node4",), set())
    assert "node4 (torch was not imported within 6 s)" in found.sentence


@pytest.mark.parametrize(("does", "fault"), [("has a slow rail", "slow"), ("has a wrong rail", "wrong")])
def test_a_bad_rail_is_named_by_its_local_rank(searched, does, fault):
    found, _ = searched(lambda n, *_: does if n == 3 else "done", backend="nccl")
    (culprit,) = found.culprits
    assert (culprit.part, culprit.nodes, culprit.local_ranks, culprit.fault) == ("rail", ("node3",), (1,), fault)


def test_healthy_rails_are_not_named_and_gloo_has_no_rails(searched):
    assert searched(lambda *_: "done", backend="nccl")[0].kind == "healthy"
    assert searched(lambda n, *_: "has a slow rail" if n == 3 else "done")[0].kind == "healthy"
