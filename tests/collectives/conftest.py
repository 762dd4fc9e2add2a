"""Ranks forked by a program that has imported torch, for all tests of what a rank does."""

import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import distcheck
from distcheck.collectives.postponed import without_meta_kernels

with without_meta_kernels():  # every worker imports torch to collect these tests; a rank leaves this part out, too
    import distcheck.collectives.software

HERE = Path(__file__).parent
ROOT = Path(distcheck.__file__).parents[1]


@contextmanager
def asking(name):
    """Start a program of this folder that imports torch once; yield what has it fork ranks and returns its answer."""
    with subprocess.Popen(
        [sys.executable, HERE / name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:

        def ask(**asked):
            program.stdin.write(json.dumps(asked) + "\n")
            program.stdin.flush()
            assert select.select([program.stdout], [], [], 100)[0], "no answer within 100 s"
            return json.loads(program.stdout.readline())

        yield ask
        program.stdin.close()
        program.kill()  # it would wait for ranks that hang; they end at their own deadline


@pytest.fixture(scope="session")
def _forked():
    with asking("forked_ranks.py") as ask:
        yield ask


def only(messages, kind):
    """Return the forked ranks' messages of one kind."""
    return [{k: v for k, v in m.items() if k != "said"} for m in messages if m["said"] == kind]


@pytest.fixture
def ranks_say(_forked, tmp_path):
    """Return a function that returns the messages of forked ranks, and what they wrote to stderr."""

    def say(**asked):
        stderr = tmp_path / "stderr"
        answer = _forked(**{"backend": "gloo", "stderr": str(stderr), **asked})
        assert answer["before"] == {"threads": 1, "tasks": 1}, "importing the worker started a thread"
        return answer["said"], stderr.read_text()

    return say
