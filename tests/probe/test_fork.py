"""A question that is asked by a fork of the process: it answers, fails and hangs as a program of its own does."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.process
ASKS = """
import asyncio, json, os, sys, threading, time
from distcheck.probe.child import Question, ask
from distcheck.probe.fork import forking
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
os.open(os.devnull, os.O_RDONLY)
with forking():
    question = Question(sys.argv[1], "the node", "its driver hangs", ("word",))
    found = asyncio.run(ask(question, str, 1.0, environ={"A": "1"}))
print(found if isinstance(found, str) else json.dumps(found.reason))
print(os.getpid())
"""
MODULES = {
    "answers": """
        names = os.listdir("/proc/self/fd")
        found = {"environ": dict(os.environ), "files": len(names) - 1, "parent": os.getppid()}
        print("a line that is no answer")
        return json.dumps(found | {"word": word, "leads its group": os.getpgrp() == os.getpid()})
    """,
    "raises": "raise ValueError('no such card')",
    "leaves": "sys.exit(3)",
    "dies": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": """
        subprocess.Popen(["sleep", "61"])
        time.sleep(60)
    """,
}


@pytest.fixture
def asked(tmp_path):
    """Ask with a fork that runs this module; return what is found, and the pid of who asked."""

    def asked(name):
        body = textwrap.indent(textwrap.dedent(MODULES[name]), "    ")
        start = "import json, os, signal, subprocess, sys, time\n\ndef collect(word):\n"
        (tmp_path / f"{name}.py").write_text(start + body)
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", ASKS, name],
            env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert ended.stderr == ""
        found, pid = ended.stdout.splitlines()
        return json.loads(found), int(pid)

    return asked


def test_a_fork_has_its_words_its_variables_no_file_of_ours_and_its_own_group(asked):
    found, pid = asked("answers")
    assert found == {
        "word": "word",
        "environ": {"A": "1"},
        "files": 3,
        "parent": pid,
        "leads its group": True,
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "the process that queries the node gave no answer (exit code 1): ValueError: no such card"),
        ("leaves", "the process that queries the node gave no answer (exit code 3): no output"),
        ("dies", "the node crashed the process that queried it: SIGSEGV"),
        ("hangs", "the node did not answer within 1 s: its driver hangs"),
    ],
)
def test_a_fork_that_fails_is_a_missing_answer_with_its_reason_and_nothing_of_it_is_left(asked, name, reason):
    assert asked(name)[0] == reason
    told = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 61" not in told.splitlines()
