"""Ranks forked by a program that has imported torch, for all tests of what a rank does."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import distcheck
from distcheck.collectives.postponed import without_meta_kernels

with without_meta_kernels():  # every worker imports torch to collect these tests; a rank leaves this part out, too
    import distcheck.collectives.software

PROGRAM = Path(__file__).with_name("forked_ranks.py")
ROOT = Path(distcheck.__file__).parents[1]


@pytest.fixture(scope="session")
def forker():
    """Start the program that imports torch once and forks the ranks of every test."""
    with subprocess.Popen(
        [sys.executable, PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        yield program
        program.stdin.close()
        program.kill()  # it would wait for ranks that hang; they end at their own deadline


def only(messages, kind):
    """Return the forked ranks' messages of one kind."""
    return [{k: v for k, v in m.items() if k != "said"} for m in messages if m["said"] == kind]


@pytest.fixture
def ranks_say(forker, tmp_path):
    """Return a function that returns the messages of forked ranks, and what they wrote to stderr."""

    def say(**asked):
        stderr = tmp_path / "stderr"
        forker.stdin.write(json.dumps({"backend": "gloo", "stderr": str(stderr), **asked}) + "\n")
        forker.stdin.flush()
        assert select.select([forker.stdout], [], [], 100)[0], "no answer within 100 s"
        answer = json.loads(forker.stdout.readline())
        assert answer["before"] == {"threads": 1, "tasks": 1}, "importing the worker started a thread"
        return answer["said"], stderr.read_text()

    return say
