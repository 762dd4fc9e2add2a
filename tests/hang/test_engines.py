"""`distcheck hang` in an engine whose workers only their titles name; what runs in them is made like vLLM."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hang.expected import Case
from hang.started import RANKS, Started
from real.ports import claimed_port
from real.waiting import until

pytestmark = pytest.mark.process
ENGINE = Path(__file__).with_name("engine")


def line(word: str) -> str:
    """Return where the engine's package is marked with a word, as file:line."""
    (found,) = (
        f"{path.name}:{number}"
        for path in ENGINE.rglob("*.py")
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.endswith(f"# <- {word}")
    )
    return found


@pytest.fixture
def engine(tmp_path, worker_id):
    """Start an engine and send calls to its workers; nothing of it is left after the test."""
    case = Case("engine", (), (), (), *[frozenset()] * 4)
    started = Started(case, tmp_path)
    with claimed_port(worker_id) as port:

        def run(*calls: str) -> Started:
            words = [sys.executable, ENGINE / "serve.py", tmp_path, str(port), "room for titles" * 20]
            popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            started.popens.append(popen)
            started.tops.append(psutil.Process(popen.pid))
            until(lambda: len(started.pids) == RANKS, 120)
            for call in calls:
                popen.stdin.write(f"{call}\n")
            popen.stdin.flush()
            time.sleep(1.0)
            return started

        yield run
        started.end()
        for popen in started.popens:
            popen.stdin.close()


CASES = {
    "an idle one is not hung": (("step",) * 3, "not hung", {}),
    "a worker sleeps in a call": (("step", "sleep"), "hung", {1: "sleep"}),
    "a worker's call failed": (("step", "fail"), "hung", {2: "idle"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_about_an_engine(name, engine, look):
    calls, answer, odd = CASES[name]
    started = engine(*calls)
    seen = look(started)
    assert seen.hang["answer"] == answer, seen.shown()
    assert {row["rank"]: row["at"] for row in seen.hang["odd"]} == {rank: line(word) for rank, word in odd.items()}
    assert {row["rank"]: row["pid"] for row in seen.hang["ranks"]} == started.pids
    assert seen.hang["job"] == f"vllm of process {started.tops[0].pid}"
    assert seen.stopped == set()
