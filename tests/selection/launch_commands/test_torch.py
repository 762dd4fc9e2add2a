"""What torchrun's words say about its ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest
from selection.launch_commands.reading import reading, told, why

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import stated
from distcheck.selection.launch_commands.stated import Untold


def of(line: str, **environ: str) -> Stated | Untold | None:
    return reading(line, environ)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun x.py", Stated("torchrun")),
        ("torchrun --standalone --nproc-per-node 8 x.py", Stated("torchrun", "8")),
        ("torchrun --nproc_per_node=gpu x.py", Stated("torchrun", "gpu", few_gpus=("-1",))),
        ("torchrun --master-port 0 x.py", Stated("torchrun", master_addr="127.0.0.1")),
        ("torchrun --nproc-per-node 2 --master-port 29500 x.py", Stated("torchrun", "2", 1, 0, 0, "127.0.0.1", 29500)),
        (
            "torchrun --nnodes 2 --node-rank 1 --master-addr node1 --nproc-per-node 8 x.py --nnodes 3",
            Stated("torchrun", "8", 2, 0, 1, "node1", 29500),
        ),
        (
            "torchrun --nnodes 2 --node-rank 1 --rdzv-endpoint [fd00::1]:29501 x.py",
            Stated("torchrun", "1", 2, 0, 1, "fd00::1", 29501),
        ),
        (
            "python3 -u -m torch.distributed.run --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=node1 --rdzv_id=7 x",
            Stated("torchrun", "1", 4, 1, None, "node1", 29400, "7"),
        ),
        (
            "python -m torch.distributed.launch --use-env --nproc-per-node 2 x.py",
            Stated("torch.distributed.launch", "2"),
        ),
    ],
)
def test_torchrun_is_read_as_it_reads_itself(line: str, expected: Stated) -> None:
    assert of(line) == expected


def test_each_option_has_a_variable_which_the_option_overrides() -> None:
    there = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "3", "PET_MASTER_ADDR": "node1"}
    assert of("torchrun --nproc-per-node 4 x.py", **there) == Stated(
        "torchrun", "4", 2, 0, 1, "node1", 29500, environment=True
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torchrun --nproc-per-node two x.py", "refused: --nproc-per-node is 'two', expected a number from 1"),
        ("torchrun --nnodes 3:2 x.py", "refused: --nnodes is 3:2, expected MIN:MAX"),
        (
            "torchrun --standalone --nnodes 2 x.py",
            "refused: --standalone is for one node, and --nnodes is 2: it would wait in vain",
        ),
        (
            "tune run --nnodes 2 --nproc_per_node 4 full_finetune_distributed --config c",  # without an endpoint
            "refused: --standalone is for one node, and --nnodes is 2: it would wait in vain",
        ),
        ("torchrun --nproc-per-node npu x.py", "it counts devices of the type npu"),
        ("torchrun --nnodes 2 --master-port 0 x.py", "its --master-port is 0: a port of its own on each node"),
        (
            "bash -c 'torchrun --nproc-per-node two x.py'",
            "refused: --nproc-per-node is 'two', expected a number from 1",
        ),
        (
            "bash -c 'torchrun --nproc-per-node $N --nnodes 1 x.py'",
            "its --nproc-per-node is '--nnodes', expected a number from 1",
        ),
        (
            "torchrun --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint e:1 x.py",
            "its nodes get their numbers from etcd-v2",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, reason: str) -> None:
    assert why(line) == reason


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("--nnodes 2 --node-rank 1 --master-addr n --nproc-per-node two", (2, 0, 1, "n", 29500)),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n:1 --nproc-per-node two", (2, 0, None, "n", 1)),
        ("--nproc-per-node two", (1, 0, 0, "", 0)),
        ("--nnodes 2 --master-port x", (1, 0, 0, "", 0)),
        ("--nnodes 2 --master-port 70000 --nproc-per-node two", (1, 0, 0, "", 0)),
    ],
)
def test_a_refused_command_keeps_the_place_where_the_other_nodes_wait_for_it(words, place) -> None:
    found = reading(f"torchrun {words} x.py")
    assert isinstance(found, Stated)
    assert found.refused
    assert (found.nodes, found.fewest, found.node_rank, found.master_addr, found.master_port) == place


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Stated("torchrun", "8", 2, 0, 0, "node1", 29500), "2 nodes, this is node 0, 8 ranks each, master node1:29500"),
        (Stated("torchrun", "1"), "1 rank on this node"),
        (Stated("torchrun", "gpu"), "one rank per GPU on this node"),
        (Stated("torchrun", "2", 4, 1, None, "n", 29400), "1 to 4 nodes, 2 ranks each, master n:29400"),
    ],
)
def test_what_was_understood_is_said_in_one_line(found: Stated, words: str) -> None:
    assert str(found) == words


def test_an_option_that_torchrun_does_not_have_hides_where_its_script_begins() -> None:
    assert told("torchrun --nprocs 2 t.py") == (
        "not told: its option --nprocs is unknown to distcheck; give --hosts and --nproc"
    )


@pytest.mark.parametrize(
    ("line", "asked", "remedy"),
    [
        ("torchrun --nprocs 2 t.py", "torch.distributed.run", "--nproc-per-node 2"),
        ("torchrun --nproc 2 t.py", "torch.distributed.run", "--nproc-per-node 2"),
        ("torchrun -n 2 t.py", "torch.distributed.run", "--nproc-per-node 2"),
        ("torchrun --nodes=2 t.py", "torch.distributed.run", "--nnodes 2"),
        ("python -m torch.distributed.launch --num_gpus 2 t.py", "torch.distributed.launch", "--nproc-per-node 2"),
        ("accelerate launch --nproc_per_node 2 t.py", "accelerate.commands.launch", "--num_processes 2"),
        ("accelerate launch --main_proces_port 1 t.py", "accelerate.commands.launch", "--main_process_port 1"),
        ("deepspeed --nproc_per_node 2 t.py", "deepspeed.launcher.runner", "--num_gpus 2"),
        ("torchrun --colour blue t.py", "torch.distributed.run", ""),
        ("torchrun --max-restarts two t.py", "torch.distributed.run", ""),
        ("torchrun --nproc-per-node 2", "torch.distributed.run", ""),
        ("accelerate launch", "accelerate.commands.launch", ""),
        ("env A=b timeout 1h torchrun --nprocs 2 t.py", "torch.distributed.run", "--nproc-per-node 2"),
        ("env PATH=/opt/bin torchrun --nprocs 2 t.py", "", ""),
        ("torchrun --standalone t.py", "", ""),
        ("torchrun --nproc_per_node=2 -r3 -m --max-restarts 1 t --nprocs 2", "", ""),
        ("accelerate launch --fsdp_version 2 --multi_gpu -m --tee 3 t --nprocs 2", "", ""),
        ("deepspeed -H none --num_gpus 2 --master_port 29511 t.py --nprocs 2", "", ""),
        ("conda run -n x torchrun --nprocs 2 t.py", "", ""),
    ],
)
def test_a_launcher_is_asked_about_an_option_that_it_may_refuse(line: str, asked: str, remedy: str) -> None:
    asks: list[str] = []

    def ask(_program: str, module: str, _parser: str, words: Sequence[str]) -> str:
        asks.append(module)
        return f"unrecognized arguments: {words}"

    def read(_path: str) -> str:
        raise FileNotFoundError

    found = stated(shlex.split(line), {}, read, ask)
    assert asks == ([asked] if asked else [])
    refused = isinstance(found, Stated) and found.refused.startswith("unrecognized")
    assert (refused, found.remedy if refused else "") == (bool(asked), remedy)
