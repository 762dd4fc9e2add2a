"""Tokens that distcheck makes: in the environment of srun and mpirun, on the standard input of ssh, nowhere else."""

from __future__ import annotations

import base64
import contextlib
import time

import msgspec
import pytest

from distcheck.facts.asked import Asked
from distcheck.launch.remote import assignment, mpi
from distcheck.launch.remote.spec import Outside
from distcheck.rollcall import seal
from distcheck.run import outside
from distcheck.run.request import Request
from distcheck.run.watchdog import Watchdog

ASKED = Asked(command="env", looks=("environment", "meeting", "launch"), timeout_seconds=20)


@pytest.fixture
def started(monkeypatch):
    """What a launch would start, round by round: the commands, and the variables that they get."""
    rounds = []
    monkeypatch.setattr(mpi, "_launcher", lambda: ("mpirun", "openmpi"))
    monkeypatch.setattr(
        outside.engine, "run", lambda commands, *_, environment, **_more: rounds.append((commands, environment))
    )

    def start(engine, environ):
        request = Request(asked=ASKED, placements=(), environ=environ, start=time.monotonic(), quiet=True)
        launch = Outside(
            engine=engine, hosts=("a", "b"), ranks_by_host=(1, 1), multiplies=True, master_addr="a", master_port=1
        )
        outcome = outside.run_outside(request, launch, lambda *_: 0, Watchdog(60, 20))
        ((commands, environment),) = rounds
        return commands, environment, outcome.job

    return start


def _seen_by_others(commands) -> str:
    """All that ps shows of the commands, as it is and decoded."""
    words = [word for command in commands for word in (*command.argv, command.line)]
    decoded = []
    for word in words:
        with contextlib.suppress(ValueError):
            decoded.append(base64.urlsafe_b64decode(word).decode("latin-1"))
    assert any("environment" in d for d in decoded) or all(command.stdin for command in commands)
    return " ".join([*words, *decoded])


@pytest.mark.parametrize("engine", ["ssh", "slurm", "mpi"])
@pytest.mark.parametrize("chosen", [None, "my own token"])
def test_probes_get_a_token_that_other_users_cannot_see(started, engine, chosen):
    commands, environment, job = started(engine, {"DISTCHECK_TOKEN": chosen} if chosen else {})
    token = environment["DISTCHECK_TOKEN"]
    assert token == chosen if chosen else len(token) == len(seal.make_token())
    assert token not in _seen_by_others(commands)
    assert token not in msgspec.json.encode(job).decode()
    if engine == "ssh":
        told = [assignment.decode(command.stdin.decode()) for command in commands]
        assert [t.environment["DISTCHECK_TOKEN"] for t in told] == [token, token]
    else:
        assert all(command.stdin == b"" for command in commands)
