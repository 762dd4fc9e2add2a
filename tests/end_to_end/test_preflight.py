"""distcheck.preflight() in real ranks: the example of docs/python.md under torchrun, and ranks started by hand."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from real.agents import TORCHRUN
from real.ended import BEYOND_SECONDS
from real.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
CALL = """
import json, os, signal, sys, threading
import distcheck
loaded = {"torch", "msgspec", "typer", "subprocess"} & set(sys.modules)
assert not loaded, loaded
if "ignore" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def state():
    handlers = [signal.getsignal(n) for n in signal.valid_signals()]
    threads = [t.name for t in threading.enumerate()]
    return handlers, dict(os.environ), os.getcwd(), threads, len(os.listdir("/proc/self/fd")), os.umask(0o77)
os.umask(0o77)
before = state()
try:
    result = distcheck.preflight("env", check=True, **json.loads(sys.argv[1]))
except distcheck.PreflightError as error:
    result = error.result
    print(error, file=sys.stderr)
assert state() == before
assert not {"torch", "typer", "asyncio"} & set(sys.modules)
rules = result.report and [found.rule for found in result.report.findings]
print(json.dumps([result.exit_code, result.verdict, bool(result), rules]))
"""


@pytest.fixture
def call(start):
    """Start a process that calls preflight("env") with these arguments."""

    def run(*words, env=None, **given):
        return start("-c", CALL, json.dumps({"timeout": 20, **given}), *words, program=[sys.executable], env=env)

    return run


def test_the_example_checks_two_ranks_under_torchrun_and_then_starts_the_job(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(re.search(r"(?s)```python\n(.*?)```", PAGE.read_text())[1])
    ended = start("--standalone", "--nproc-per-node=2", str(script), program=TORCHRUN).wait()
    assert ended.code == 0, ended
    # Two ranks write to one pipe: their lines may run together.
    assert sorted(re.findall(r"rank \d: pass, sum 2", ended.out)) == ["rank 0: pass, sum 2", "rank 1: pass, sum 2"]


@pytest.mark.without_gpus
@pytest.mark.parametrize("ignore", [(), ("ignore",)])
def test_every_rank_gets_the_verdict_and_rank_0_the_report(call, port, ignore):
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [call(*ignore, env=env | {"RANK": str(rank), "LOCAL_RANK": "0"}) for rank in range(2)]
    first, second = (rank.wait() for rank in ranks)
    code, verdict, passed, rules = json.loads(first.out)
    assert (code, verdict, passed) == (30, "job", False), first
    assert "env-local-rank-duplicate" in rules
    assert json.loads(second.out) == [30, "job", False, None], second
    assert "error: env-local-rank-duplicate: " in first.err
    assert "; report: rank 0, node " in second.err


def test_ranks_given_as_arguments_are_those_that_are_checked(call, port):
    given = {"world_size": 2, "master_addr": "127.0.0.1", "master_port": port}
    ranks = [call(rank=rank, local_rank=rank, **given) for rank in range(2)]
    passed = [0, "pass", True]
    assert [json.loads(rank.wait().out) for rank in ranks] == [[*passed, []], [*passed, None]]  # one report: they met


def test_a_process_without_a_launcher_passes_and_an_invalid_argument_is_an_error(call):
    lone, invalid = call(), call(rank=-1)
    assert json.loads(lone.wait().out) == [0, "pass", True, []]
    ended = invalid.wait()
    assert ended.err.splitlines()[-1].startswith("ValueError: --rank -1: must be a whole number"), ended


def handles_sigterm(process):
    caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_the_child_ends_with_the_process_that_called_it(call, port):
    waiting = call(rank=1, world_size=2, master_addr="127.0.0.1", master_port=port)
    (child,) = until(psutil.Process(waiting.process.pid).children)
    until(lambda: handles_sigterm(child))
    waiting.interrupt(signal.SIGKILL)
    assert psutil.wait_procs([child], timeout=10)[1] == []
    assert waiting.wait().seconds < 15  # the child would wait 20 s for rank 0


def test_a_rank_whose_peers_do_not_come_is_told_so_in_time(call, port):
    alone = call(rank=1, world_size=2, master_addr="127.0.0.1", master_port=port, timeout=8).wait()
    code, verdict, passed, rules = json.loads(alone.out)
    assert (code, verdict, passed) == (20, "unknown", False), alone
    assert rules
    assert alone.seconds < 8 + BEYOND_SECONDS
