from __future__ import annotations

import pytest

from distcheck.cli.script import rendezvous_backend_of, script_of


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 1 other.py", "train.py"),
        ("/usr/bin/python3.11 -u /data/train.py", "/data/train.py"),
        ("torchrun --nproc-per-node 8 train.py", "train.py"),
        ("python -m package", ""),
        ("docker run image python train.py", ""),
        ("bash run.sh", ""),
    ],
)
def test_the_script_is_the_first_python_file_that_runs_here(command, script):
    assert script_of(command.split()) == script


@pytest.mark.parametrize(
    ("command", "backend"),
    [
        ("torchrun --rdzv-backend=etcd train.py", "etcd"),
        ("torchrun --rdzv_backend etcd-v2 train.py", "etcd-v2"),
        ("torchrun train.py", ""),
        ("torchrun --rdzv-backend", ""),
    ],
)
def test_the_rendezvous_backend_is_read_as_torchrun_reads_it(command, backend):
    assert rendezvous_backend_of(command.split()) == backend
