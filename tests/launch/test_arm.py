"""--arm: what it sets, where the kernel needs it, and what it says that this reaches."""

from __future__ import annotations

import errno
import os

import pytest

from distcheck.cli.gate import _armed
from distcheck.launch import arm as arming
from distcheck.launch.arm import arm

NOBODY = "no process may attach with kernel.yama.ptrace_scope 3"
REACHES = [
    (None, "rank", False, "arm: nothing to set, this kernel has no Yama"),
    ("0", "rank", False, "arm: nothing to set, kernel.yama.ptrace_scope is 0"),
    ("1", "rank", True, "arm: distcheck hang may attach to train without root"),
    ("1", "process", True, "train without root, but not to processes that it starts; distcheck.preflight(arm=True) in"),
    ("1", "launcher", False, "arm: no effect, train starts the ranks as children, which do not inherit it"),
    ("2", "rank", False, "arm: no effect, only root may attach with kernel.yama.ptrace_scope 2"),
    ("3", "rank", False, f"arm: no effect, {NOBODY}"),
]


@pytest.fixture
def scope(tmp_path):
    """Return a function that makes a ptrace_scope of a value; None is a kernel without Yama."""

    def made(value):
        path = tmp_path / "ptrace_scope"
        if value is not None:
            path.write_text(f"{value}\n")
        return path

    return made


@pytest.mark.parametrize(("value", "reach", "sets", "said"), REACHES)
def test_it_asks_the_kernel_only_where_that_helps_and_says_what_it_reaches(scope, value, reach, sets, said):
    asked = []
    line = arm("train", reach, scope=scope(value), allow=lambda: asked.append(1))
    assert (bool(asked), said in line, "\n" in line) == (sets, True, False), line


def test_a_kernel_that_refuses_is_no_success(scope):
    def refuse():
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    line = arm("train", "rank", scope=scope(1), allow=refuse)
    assert line == "arm: no effect, PR_SET_PTRACER failed: Operation not permitted"


@pytest.mark.process
def test_the_kernel_knows_the_request_exactly_if_it_has_yama(scope):
    child = os.fork()
    if child == 0:  # so that this process stays as it is
        line = arm("train", "rank", scope=scope(1))
        os._exit(0 if line.endswith("without root") else 7 if line.endswith("failed: Invalid argument") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if arming._SCOPE.exists() else 7)


@pytest.mark.parametrize(
    ("command", "alone", "reach"),
    [
        ("python3 train.py", True, "rank"),
        ("/opt/venv/bin/python -u -m train", True, "rank"),
        ("python3 train.py", False, "process"),  # it starts the other ranks
        ("bash run.sh", True, "process"),
        ("env A=1 python3 train.py", True, "process"),
        ("vllm serve model", True, "process"),
        ("torchrun --nproc-per-node 4 train.py", False, "launcher"),
        ("python3 -m torch.distributed.run --nproc-per-node 4 train.py", False, "launcher"),
        ("srun python3 train.py", False, "launcher"),
    ],
)
def test_what_command_is_decides_what_is_reached(monkeypatch, command, alone, reach):
    monkeypatch.setattr(arming, "arm", lambda name, reach: f"{name} {reach}")
    assert _armed(command.split(), alone=alone).split()[1] == reach
