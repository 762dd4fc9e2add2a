"""Name resolution with a time limit."""

from __future__ import annotations

import threading

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.rollcall import resolution


async def test_a_name_is_resolved_or_missing_with_the_reason():
    assert isinstance(await resolution.resolve("127.0.0.1", 5), Resolution)
    found = await resolution.resolve("x" * 70 + ".invalid", 5)  # no label is so long: nobody is asked
    assert isinstance(found, Missing)
    assert found.reason


async def test_a_name_is_resolved_although_no_further_thread_may_start(monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)

    assert isinstance(await resolution.resolve("127.0.0.1", 5), Resolution)


def test_a_resolver_that_hangs_is_given_up(live, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(resolution.network, "resolve", lambda _name: hang.wait(20))

    async def main():
        found = await resolution.resolve("node1", 0.2)
        assert isinstance(found, Missing)
        assert "no answer" in found.reason

    live(main())
    hang.set()


def test_a_name_that_comes_late_is_asked_for_again_while_patience_lasts(live, monkeypatch):
    unknown = Missing(reason="[Errno -2] Name or service not known")
    answers = [unknown, Resolution(name="trainer-0", addresses=("10.0.0.1",), seconds=0.001)]
    monkeypatch.setattr(resolution, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(resolution.network, "resolve", lambda _name: answers.pop(0) if len(answers) > 1 else answers[0])
    found = live(resolution.resolve("trainer-0", 5, 5))
    assert (found.tries, found.addresses) == (2, ("10.0.0.1",))
    assert found.seconds >= 0.05
    answers[:] = [unknown]
    assert live(resolution.resolve("trainer-0", 5, 0.2)) == unknown
    assert live(resolution.resolve("trainer-0", 5)) == unknown
