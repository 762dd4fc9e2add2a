"""Remember on a node which agents took part in an attempt of torchrun, for the next attempt.

torchrun restarts the ranks after a failure (``--max-restarts``), and when a node joins an elastic job
(``--nnodes 1:4``). Its agent makes a folder of its own at its start and gives each rank the path
FOLDER/attempt_RESTART/LOCAL_RANK/error.json as TORCHELASTIC_ERROR_FILE (torch 2.1 to 2.13,
torch/distributed/elastic/multiprocessing/api.py). So a file in FOLDER lasts exactly as long as the agent's state: all
attempts of one agent see it, and no other job does. With ``--log-dir`` FOLDER may be on a network file system, so
another process, which can be killed, reads and writes it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.rank import Agent, RunAttempt
from distcheck.probe import process
from distcheck.probe.child import Question, exit_after_lifetime, say

_NAME = "distcheck_attempt.json"
_LARGEST_BYTES = 1 << 24
_ERROR_FILE = re.compile(r"(/.+)/attempt_\d+/0/error\.json")
_ELASTIC = re.compile(r"(?:^| )--?nnodes[ =]\d+:\d+(?: |$)")


class _Kept(msgspec.Struct):
    """What the file holds."""

    agent: str
    """The agent that made the folder: its pid and start time."""
    attempt: RunAttempt


def folder(environ: Mapping[str, str]) -> str:
    """Return the folder of this process's agent, '' if it cannot restart its ranks or another rank keeps the file."""
    place = _ERROR_FILE.fullmatch(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    agent = process.agent(environ) if place else None
    return place[1] if place and agent and _restarts(environ, agent) else ""


def _restarts(environ: Mapping[str, str], agent: Agent) -> bool:
    elastic = _ELASTIC.search(" ".join(agent.arguments)) or ":" in environ.get("PET_NNODES", "")
    return bool(elastic) or environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def question(where: str, environ: Mapping[str, str]) -> Question:
    """Return the question for the last attempt in this folder; the child then writes what it is given."""
    agent = process.agent(environ)
    owner = f"{agent.pid} {process.started(agent.pid)}" if agent else ""
    return Question(__name__, f"the folder {where}", "its file system hangs", (where, owner))


def read(where: Path, owner: str) -> RunAttempt | Missing:
    """Return the last attempt of this agent; the first one has the number 0."""
    try:
        with (where / _NAME).open("rb") as file:
            kept = msgspec.json.decode(file.read(_LARGEST_BYTES), type=_Kept)
    except FileNotFoundError:
        return RunAttempt(0)
    except (OSError, msgspec.DecodeError) as error:
        return Missing(reason=f"{where / _NAME}: {error}")
    return kept.attempt if kept.agent == owner else RunAttempt(0)


def write(where: Path, owner: str, attempt: RunAttempt) -> None:
    """Replace the last attempt; the file is whole at any moment."""
    new = where / f"{_NAME}.{os.getpid()}"
    new.write_bytes(msgspec.json.encode(_Kept(owner, attempt)))
    new.replace(where / _NAME)


def main() -> None:
    """Print the last attempt as one line of JSON, and write each one that is given on standard input."""
    exit_after_lifetime()
    where, owner = Path(sys.argv[2]), sys.argv[3]
    say(read(where, owner))
    for line in sys.stdin.buffer:
        with suppress(msgspec.DecodeError, OSError):
            write(where, owner, msgspec.json.decode(line, type=RunAttempt))


if __name__ == "__main__":
    main()
