"""What deepspeed's words and hostfile say about its ranks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from selection.launch_commands.reading import reading, told

from distcheck.facts.launch_command import Stated

HOSTS = "# the pool\nworker-1 slots=8\nworker-2 slots=8\n\nworker-3 slots=8\n"
FILES = {"hosts": HOSTS, "one": "worker-1 slots=4\n", "uneven": "worker-1 slots=4\nworker-2 slots=8\n"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deepspeed train.py", "one rank per GPU on this node, master 127.0.0.1:29500"),
        ("deepspeed --num_gpus 4 train.py --num_gpus 2", "4 ranks on this node, master 127.0.0.1:29500"),
        ("deepspeed --num_accelerators=2 --master_port 6000 x.py", "2 ranks on this node, master 127.0.0.1:6000"),
        ("deepspeed --include localhost:1,3 train.py", "2 ranks on this node, master 127.0.0.1:29500"),
        ("deepspeed -i localhost train.py", "one rank per GPU on this node, master 127.0.0.1:29500"),
        ("python -m deepspeed.launcher.runner --num_gpus 2 x.py", "2 ranks on this node, master 127.0.0.1:29500"),
        ("deepspeed --hostfile gone --num_gpus 2 train.py", "2 ranks on this node, master 127.0.0.1:29500"),
        ("deepspeed --hostfile=hosts train.py", "24 ranks on 3 hosts, master worker-1:29500"),
        ("deepspeed -H hosts --num_nodes 2 --num_gpus 4 train.py", "8 ranks on 2 hosts, master worker-1:29500"),
        ("deepspeed -H hosts --master_addr 10.0.0.1 train.py", "24 ranks on 3 hosts, master 10.0.0.1:29500"),
        ("deepspeed -H hosts -i worker-3@worker-2:0,2 train.py", "10 ranks on 2 hosts, master worker-2:29500"),
        ("deepspeed -H hosts --exclude worker-1@worker-2:0 x.py", "15 ranks on 2 hosts, master worker-2:29500"),
        ("deepspeed -H one train.py", "4 ranks on this node, master 127.0.0.1:29500"),
        ("deepspeed -H one --force_multi train.py", "4 ranks on 1 host, master worker-1:29500"),
        (
            "deepspeed -H hosts --no_ssh --node_rank 2 --master_addr worker-1 train.py",
            "3 nodes, this is node 2, 8 ranks each, master worker-1:29500",
        ),
    ],
)
def test_options_and_hostfile_say_which_ranks_start(line: str, expected: str) -> None:
    assert told(line, {}, FILES) == expected


def test_hosts_are_reached_as_deepspeed_does() -> None:
    found = reading("deepspeed -H uneven --launcher OpenMPI train.py", {}, FILES)
    assert isinstance(found, Stated)
    assert (found.hosts, found.starter, found.file) == ((("worker-1", 4), ("worker-2", 8)), "mpi", "uneven")


def test_the_pool_of_job_hostfile_is_the_default() -> None:
    assert told("deepspeed x.py", {}, {"/job/hostfile": HOSTS}) == "24 ranks on 3 hosts, master worker-1:29500"


@pytest.mark.parametrize(
    ("environ", "files", "without_gpus"),
    [
        ({}, {}, "1"),
        ({}, {"/sys/devices/system/node/has_cpu": "0-1,4\n"}, "3"),
        ({"LOCAL_SIZE": "2"}, {"/sys/devices/system/node/has_cpu": "0\n"}, "2"),
    ],
)
def test_without_gpus_it_starts_a_rank_on_each_numa_node(
    environ: Mapping[str, str], files: Mapping[str, str], without_gpus: str
) -> None:
    found = reading("deepspeed train.py", environ, files)
    assert isinstance(found, Stated)
    assert found.few_gpus == (without_gpus,)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--num_gpus x train.py", "refused: --num_gpus is 'x', expected a number from -1"),
        ("--num_nodes 2 train.py", "refused: --num_nodes is 2, and it has no hostfile"),
        ("-H hosts -i worker-1 -e worker-2 x.py", "refused: --include and --exclude exclude each other"),
        (
            "-H hosts --num_gpus 2 -i worker-1 x.py",
            "refused: --num_nodes and --num_gpus exclude --include and --exclude",
        ),
        (
            "-H hosts -i worker-1:8 x.py",
            "refused: --include or --exclude names worker-1 or slots that its hostfile does not have",
        ),
        ("-H hosts --no_ssh x.py", "refused: --node_rank is '-1', expected a number from 0"),
        ("-H hosts --launcher slurm x.py", "Slurm places its ranks"),
        (
            "-H hosts --ssh_port 2222 x.py",
            "its ssh uses port 2222; give --hosts and --nproc, and the port in ssh_config",
        ),
        ("--exclude localhost:0 x.py", "the number of GPUs that --exclude leaves is not known; give --nproc"),
        (
            "-H bad x.py",
            "refused: --hostfile bad has a line other than HOST slots=N, or a host twice, or none",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, expected: str) -> None:
    assert told(f"deepspeed {line}", {}, FILES | {"bad": "worker-1\n"}).removeprefix("not told: ") == expected
