"""Ranks that die of real signals: named, and explained by what the kernel and the node show."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
from real.cgroups import Cgroups
from real.ended import STARTING_SECONDS
from real.spoiling import MEMORY, SHARED_MEMORY, planted, spoiled

SMALL = ["--sizes", "1M:1M", "--op", "all_reduce"]
KILL_ITSELF = """
    signal.raise_signal(signal.{name})
"""
"""To this thread, as a crash is: what os.kill() sends to a process, another thread may take."""


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGKILL"])
def test_only_a_rank_killed_by_a_signal_is_named_with_it(distcheck, tmp_path, name):
    env = spoiled(tmp_path, (2,), KILL_ITSELF, name=name)
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "30", "--format", "json", *SMALL, env=env)
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-rank-died", [2]), ended
    assert (
        f"rank 2 ({found['nodes'][0]}) died during 'check all_reduce': its process was killed by {name}"
        in (found["message"])
    )
    assert "memory limit" not in found["message"]
    assert ended.seconds < 30 + STARTING_SECONDS
    if name == "SIGBUS":
        assert "its /dev/shm has" in found["message"]
    if name == "SIGSEGV":
        assert "it was in fault (site/sitecustomize.py:" in found["message"]


@pytest.mark.parametrize(
    "given",
    [partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN),
     partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGCHLD})],
    ids=["ignored", "blocked"],
)  # fmt: skip
def test_a_killed_rank_is_named_where_the_starting_process_ignores_or_blocks_the_end_of_children(
    distcheck, tmp_path, given
):
    env = spoiled(tmp_path, (2,), KILL_ITSELF, name="SIGKILL")
    limits = ["--timeout", "30", "--format", "json"]
    ended = distcheck("bandwidth", "--nproc", "3", *limits, *SMALL, env=env, preexec_fn=given)
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-rank-died", [2]), ended
    assert "was killed by SIGKILL" in found["message"]


@pytest.fixture
def small_memory(cgroups: Cgroups):
    """Return the start of a command that runs the rest of it with so much memory; needs root and a cgroup for it."""

    def limited(size: int) -> list[str]:
        first = {"memory": {"memory.limit_in_bytes": size}}
        second = {"memory.max": size, "memory.swap.max": 0}
        (folder,) = cgroups(first, second)
        return ["sh", "-c", f'echo 0 > {folder}/cgroup.procs && exec "$@"', "sh", sys.executable, "-m", "distcheck"]

    return limited


def test_a_rank_that_the_memory_limit_kills_is_named_with_the_limit(start, tmp_path, small_memory):
    env = spoiled(tmp_path, (1,), MEMORY)
    program = small_memory(700 << 20)
    ended = start(
        "bandwidth", "--nproc", "2", "--timeout", "60", "--format", "json", *SMALL, env=env, program=program
    ).wait()
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (30, "collective-rank-died", [1]), ended
    assert found["message"].endswith("the kernel OOM-killed it at its cgroup's memory limit of 700 MiB")
    assert "# add to docker run: --memory=1400m" in found["fix"]["commands"]
    assert found["evidence"]["memory_limit_bytes"] == 700 << 20
    assert ended.report["exclude"]["nodes"] == []


@pytest.fixture
def small_shm():
    """Return the start of a command that runs the rest of it with a /dev/shm of so many MiB, in mounts of its own."""

    def limited(mebibytes: int) -> list[str]:
        able = ["unshare", "--mount", "true"]
        if not shutil.which("unshare") or subprocess.run(able, capture_output=True, check=False).returncode:
            if os.environ.get("CI"):
                pytest.fail("the test needs a mount namespace", pytrace=False)
            pytest.skip("needs root and a mount namespace of its own")
        mount = f"mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm"
        return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-m", "distcheck"]

    return limited


def test_a_rank_that_a_small_dev_shm_kills_is_named_with_its_size(start, tmp_path, small_shm):
    env = spoiled(tmp_path, (1,), SHARED_MEMORY, bytes=32 << 20)
    ended = start(
        "bandwidth", "--nproc", "2", "--timeout", "30", "--format", "json", *SMALL, env=env, program=small_shm(8)
    ).wait()
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-rank-died", [1]), ended
    assert "was killed by SIGBUS; its /dev/shm has" in found["message"]
    assert "free of 8 MiB" in found["message"]
    assert "# add to docker run: --shm-size=8g" in found["fix"]["commands"]
    assert ended.finding("host-shm-too-small")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (9, "SIGKILL")])
def test_an_import_of_torch_that_kills_its_process_is_a_finding_with_the_signal(distcheck, tmp_path, number, name):
    env = planted(tmp_path, f"import os; os.kill(os.getpid(), {number})\n", "torch/__init__.py")
    ended = distcheck("gate", "--nproc", "2", "--timeout", "20", "--format", "json", env=env)
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-rank-died", [0, 1]), ended
    assert f"died during 'the import of torch': each process was killed by {name}" in found["message"]
    assert ended.seconds < 20 + STARTING_SECONDS
