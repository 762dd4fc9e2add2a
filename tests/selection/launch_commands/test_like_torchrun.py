"""What the words of composer, colossalai run and torchx run say about their ranks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from selection.launch_commands.reading import reading, told

from distcheck.facts.launch_command import Stated

THERE = {"NODE_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "6000"}


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("composer train.py", {}, "one rank per GPU on this node"),
        ("composer -n 2 train.py -n 3", {}, "2 ranks on this node"),
        ("composer --nproc=2 -v -m package.train", {}, "2 ranks on this node"),
        ("composer train.py", {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, "4 ranks on this node"),
        ("composer -n 2 train.py", {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, "2 ranks on this node"),
        ("composer train.py", {"LOCAL_WORLD_SIZE": "0"}, "1 rank on this node"),
        ("composer -n 2 --master_port 6000 x.py", {}, "2 ranks on this node, master 127.0.0.1:6000"),
        (
            "composer -n 8 --world_size 16 --node_rank 1 --master_addr node1 --master_port 6000 train.py",
            {},
            "2 nodes, this is node 1, 8 ranks each, master node1:6000",
        ),
        (
            "composer -n 8 --world_size 24 --base_rank 16 train.py",
            {"MASTER_ADDR": "node1", "MASTER_PORT": "6000"},
            "3 nodes, this is node 2, 8 ranks each, master node1:6000",
        ),
        (
            "composer train.py",
            {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16", **THERE},
            "2 nodes, this is node 1, 8 ranks each, master node1:6000",
        ),
        ("composer install", {}, "no launcher"),
        ("composer -n two x.py", {}, "refused: --nproc is 'two', expected a number from 1"),
        ("composer -n 4 --world_size 2 x.py", {}, "refused: --world_size is '2', expected a number from 4"),
        (
            "composer -n 4 --world_size 8 x.py",
            {},
            "refused: --master_addr, --master_port or --node_rank is not given for several nodes",
        ),
        ("composer -n 4 --world_size 6 x.py", THERE, "not told: its nodes have different numbers of ranks"),
        ("composer -n 4 x.py", THERE, "refused: --node_rank or --base_rank is not 0, and it has one node only"),
        (
            "composer --world_size 16 x.py",
            THERE,
            "not told: its number of ranks per node is not given; give --rank, --world-size and --nproc",
        ),
    ],
)
def test_composer_is_read_as_it_reads_itself(line: str, environ: Mapping[str, str], expected: str) -> None:
    assert told(line, environ) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--nproc_per_node 4 train.py", "4 ranks on this node, master 127.0.0.1:29500"),
        ("train.py --lr 1 --nproc_per_node 4", "4 ranks on this node, master 127.0.0.1:29500"),
        ("--nproc_per_node 4 --extra_launch_args standalone train.py", "4 ranks on this node"),
        ("--nproc_per_node 4 --master_port 29505 train.py", "4 ranks on this node, master 127.0.0.1:29505"),
        ("--nproc_per_node 4 --host node1,node2 train.py", "8 ranks on 2 hosts, master node1:29500"),
        ("-host node1,node2 --nproc_per_node=4 --master_addr a x.py", "8 ranks on 2 hosts, master a:29500"),
        ("--hostfile hosts --nproc_per_node 2 train.py", "6 ranks on 3 hosts, master node1:29500"),
        ("--hostfile hosts --exclude node1 --nproc_per_node 2 x.py", "4 ranks on 2 hosts, master node2:29500"),
        (
            "--hostfile hosts --include node3,node1 --num_nodes 1 --nproc_per_node 2 x.py",
            "2 ranks on 1 host, master 127.0.0.1:29500",
        ),
        ("train.py", "refused: --nproc_per_node is '', expected a number from 1"),
        (
            "--hostfile hosts --include node9 --nproc_per_node 2 x.py",
            "refused: --include or --exclude names node9, which is not in its hostfile",
        ),
        (
            "--host node1,node2 --ssh-port 2222 --nproc_per_node 2 x.py",
            "not told: its ssh uses port 2222; give --hosts and --nproc, and the port in ssh_config",
        ),
    ],
)
def test_colossalai_is_read_as_it_reads_itself(line: str, expected: str) -> None:
    assert told(f"colossalai run {line}", {}, {"hosts": "node1\nnode2\n\nnode3\n"}) == expected


def test_other_commands_of_colossalai_start_no_ranks() -> None:
    assert reading("colossalai check -i") is None


def test_variables_of_torchrun_count_for_colossalai_too() -> None:
    found = reading("colossalai run --nproc_per_node 2 x.py", {"PET_STANDALONE": "1"})
    assert isinstance(found, Stated)
    assert found.master_port == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run -s local_cwd dist.ddp -j 1x4 --script train.py", "4 ranks on this node"),
        ("run -s local_cwd dist.ddp -j 4 --script train.py -- -j 3", "4 ranks on this node"),
        ("run --scheduler local_docker --wait dist.ddp --script train.py", "2 ranks on this node"),
        ("run dist.spmd -j 1x8 -m package.train", "8 ranks on this node"),
        ("run --dryrun dist.ddp -j 1x4 --script train.py", "no launcher"),
        ("run utils.echo --msg hello", "no launcher"),
        ("status local://x", "no launcher"),
        (
            "run -s local_cwd dist.ddp -j 2x4 --script x.py",
            "not told: its 2 nodes are processes of this machine; give --nproc",
        ),
        ("run -s slurm dist.ddp -j 2x4 --script x.py", "not told: slurm starts its ranks elsewhere"),
        ("run dist.spmd -j 1 --script x.py", "not told: the number of GPUs of its -h is not known; give --nproc"),
        ("run dist.ddp -j ax4 --script x.py", "refused: -j is 'ax4'; expected, for example, 1x8"),
    ],
)
def test_torchx_is_read_as_it_reads_itself(line: str, expected: str) -> None:
    assert told(f"torchx {line}") == expected


def test_torchxconfig_has_defaults_of_which_the_home_folders_win() -> None:
    files = {
        "/home/u/.torchxconfig": "[component:dist.ddp]\nj = 1x3\n",
        ".torchxconfig": "[cli:run]\nscheduler = local_cwd\n[component:dist.ddp]\nj = 1x4\n",
        "other": "[cli:run]\nscheduler = slurm\n",
    }
    assert told("torchx run dist.ddp --script x.py", {"HOME": "/home/u"}, files) == "3 ranks on this node"
    assert told("torchx run dist.ddp -j 1x5 --script x.py", {"HOME": "/home/u"}, files) == "5 ranks on this node"
    there = told("torchx run dist.ddp --script x.py", {"TORCHXCONFIG": "other"}, files)
    assert there == "not told: slurm starts its ranks elsewhere"
