"""Common mistakes: how many lines a reader needs until the cause, and until a command that helps."""

from __future__ import annotations

import pytest
from made.jobs import change_environment, change_process, healthy_job, keep_ranks

from distcheck.facts.base import Missing
from distcheck.facts.network import Bind, PortOwner
from distcheck.report import PLAIN, text
from distcheck.rules.diagnose import judge

_UNKNOWN = Missing(reason="[Errno -2] Name or service not known")
_OWNER = PortOwner(pid=207, command="python3 -m http.server", user="root", started="1")


def _ranks(job, *numbers, **variables):
    for position, number in enumerate(numbers):
        job = change_environment(job, position, RANK=str(number))
    return change_environment(job, None, **variables)


def _unresolved(job, address):
    job = change_environment(job, None, MASTER_ADDR=address)
    return change_process(job, None, master_resolution=_UNKNOWN, near_names=("localhost",) if "host" in address else ())


MISTAKES = {
    "a world too small": (_ranks(healthy_job(1, 4), WORLD_SIZE="2"), "ranks 0-3, but WORLD_SIZE is 2", "WORLD_SIZE=4"),
    "ranks from 1": (_ranks(healthy_job(), 1, 2), "counted from 1", "export RANK=0"),
    "one rank twice": (_ranks(healthy_job(), 0, 0), "rank 0 is claimed twice", "export RANK=1"),
    "a typing error in the host": (_unresolved(healthy_job(), "lcoalhost"), "lcoalhost", "MASTER_ADDR=localhost"),
    "an unknown host": (_unresolved(healthy_job(2), "xyzzy"), "the name xyzzy in MASTER_ADDR", "MASTER_ADDR=node1"),
    "a port that is no number": (_ranks(healthy_job(), MASTER_PORT="abc"), "MASTER_PORT is 'abc'", "MASTER_PORT=29501"),
    "a port in use": (
        change_process(healthy_job(), 0, bind=Bind(29500, "in-use", owner=_OWNER)), "29500", "MASTER_PORT=29501",
    ),
    "an empty variable": (_ranks(healthy_job(), MASTER_ADDR=""), "MASTER_ADDR is set but empty", "export MASTER_ADDR="),
    "localhost on two nodes": (_ranks(healthy_job(2), MASTER_ADDR="localhost"), "MASTER_ADDR", "MASTER_ADDR=node1"),
    "a local rank too high": (
        change_environment(healthy_job(1, 1), 0, LOCAL_RANK="3"), "expected 0", "export LOCAL_RANK=0",
    ),
    "two ports": (
        change_environment(healthy_job(2), (2, 3), MASTER_PORT="29507"), "MASTER_PORT 29507", "MASTER_PORT=29500",
    ),
    "a missing rank": (keep_ranks(healthy_job(3, 1), 0, 1), "rank 2 of 3 did not join", "raise --join-timeout"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_line_names_the_cause_and_the_sixth_at_the_latest_a_command(mistake):
    job, cause, command = MISTAKES[mistake]
    lines = [line for line in text.render(job, judge(job), PLAIN).splitlines() if line]
    assert cause in lines[0]
    assert any(command in line for line in lines[:6]), "\n".join(lines)
