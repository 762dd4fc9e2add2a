"""The limit of open files is raised as far as it may be, and restored."""

from __future__ import annotations

import resource

import pytest

from distcheck.probe.open_files import raise_limit, restore_limit

INFINITE = resource.RLIM_INFINITY


class Limits:
    """The limit of a process, as resource.getrlimit and setrlimit have it."""

    def __init__(self, soft: int, hard: int, *, fixed: bool = False) -> None:
        self.now, self._fixed = (soft, hard), fixed

    def getrlimit(self, _which: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _which: int, limit: tuple[int, int]) -> None:
        if self._fixed:
            raise ValueError("not allowed to raise maximum limit")
        self.now = limit


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "in_force"),
    [
        (1024, 4096, 3000, 3000),
        (1024, 4096, 9000, 4096),
        (1024, 4096, 1000, 1024),
        (4096, 4096, 9000, 4096),
        (1024, INFINITE, 9000, 9000),
        (1024, INFINITE, 1 << 24, 1 << 20),
        (INFINITE, INFINITE, 9000, 1 << 20),
    ],
)
def test_the_soft_limit_becomes_what_is_wanted_or_the_hard_one(monkeypatch, soft, hard, wanted, in_force):
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    limit, before = raise_limit(wanted)
    assert limit == in_force
    assert limits.now == ((in_force, hard) if soft != INFINITE else (soft, hard))
    restore_limit(before)
    assert limits.now == (soft, hard)


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    limits = Limits(1024, 4096, fixed=True)
    monkeypatch.setattr(resource, "getrlimit", limits.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    assert raise_limit(3000) == (1024, None)
