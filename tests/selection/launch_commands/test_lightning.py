"""What the words of fabric run and litgpt say about their ranks."""

from __future__ import annotations

import pytest
from selection.launch_commands.reading import reading, why

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import Untold

CONFIG = "checkpoint_dir: checkpoints/m\ndevices: 4\ntrain:\n  devices: 3\nnum_nodes: 2\n"


def of(line: str, **environ: str) -> Stated | Untold | None:
    return reading(line, environ, {"c.yaml": CONFIG})


def fabric(nproc: str, *place: int | str) -> Stated:
    return Stated("fabric run", nproc, *(place or (1, 0, 0, "127.0.0.1", 29400)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fabric run train.py", fabric("1")),
        ("fabric run --strategy=ddp --devices=8 --accelerator=cuda --precision=bf16 train.py", fabric("8")),
        ("fabric run train.py --devices 2 --num 3 --lr 0.1", fabric("2")),
        ("fabric run train.py -- --devices 2", fabric("1")),
        ("fabric run --devices 1,3 train.py", fabric("2")),
        ("fabric run --devices 2, train.py", fabric("1")),
        ("fabric run --devices -1 train.py", fabric("gpu")),
        ("fabric run --devices auto train.py", fabric("1")),
        ("fabric run --strategy dp --devices 4 train.py", fabric("1")),
        (
            "fabric run --node-rank=1 --main-address=10.10.10.16 --accelerator=cuda --devices=8 --num_nodes=2 train.py",
            fabric("8", 2, 0, 1, "10.10.10.16", 29400),
        ),
        ("fabric consolidate checkpoints", None),
    ],
)
def test_fabric_is_read_as_it_reads_itself(line: str, expected: Stated | None) -> None:
    assert of(line) == expected


@pytest.mark.parametrize(
    ("line", "nproc"),
    [
        ("litgpt pretrain pythia-14m", "gpu"),
        ("litgpt pretrain pythia-14m --devices 4 --train.max_tokens 10", "4"),
        ("litgpt finetune_lora checkpoints/m --data JSON", "1"),
        ("litgpt finetune checkpoints/m --devices=-1", "gpu"),
        ("litgpt finetune_full checkpoints/m --devices auto", "gpu"),
        ("python -m litgpt generate_tp checkpoints/m", "gpu"),
        ("litgpt pretrain --config c.yaml --num_nodes 1", "4"),
        ("litgpt pretrain --devices 2 --config=c.yaml --num_nodes 1", "4"),
    ],
)
def test_litgpt_starts_a_rank_for_each_device(line: str, nproc: str) -> None:
    found = of(line)
    assert isinstance(found, Stated)
    assert (found.nproc, found.nodes, found.master_port) == (nproc, 1, 0)


def test_the_nodes_of_litgpt_meet_by_variables() -> None:
    there = {"MASTER_ADDR": "node1", "MASTER_PORT": "1234", "NODE_RANK": "1"}
    two = Stated("litgpt pretrain", "4", 2, 0, 1, "node1", 1234, environment=True)
    assert of("litgpt pretrain --config c.yaml", **there) == two


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("litgpt download m", {}),
        ("litgpt chat checkpoints/m", {}),
        ("litgpt pretrain m --devices 4", {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train.sh"}),
        ("litgpt pretrain m --devices 4", {"LOCAL_RANK": "1"}),
        ("python train.py --devices 4", {}),
    ],
)
def test_a_process_that_starts_no_others_is_none_of_them(line: str, environ: dict[str, str]) -> None:
    assert of(line, **environ) is None


@pytest.mark.parametrize(
    ("more", "place"),
    [({}, ("node3", 18765)), ({"MASTER_PORT": "29511", "MASTER_ADDR": "node4"}, ("node4", 29511))],
)
def test_litgpts_tasks_of_slurm_meet_where_lightning_has_them_meet(
    more: dict[str, str], place: tuple[str, int]
) -> None:
    task = {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "123765", "SLURM_NODELIST": "node[3-4]"}
    found = of("litgpt pretrain m --devices 2", **task, **more)
    assert found == Stated("litgpt pretrain", "task", 1, 0, 0, *place, environment=True)
    assert str(found) == f"one rank per Slurm task, master {place[0]}:{place[1]}"


def test_an_interactive_job_of_slurm_is_no_batch_job() -> None:
    assert of("litgpt pretrain m --devices 4", SLURM_NTASKS="4", SLURM_JOB_NAME="bash") == Stated(
        "litgpt pretrain", "4"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("fabric run --devices two train.py", "refused: --devices is 'two', expected a number from 1"),
        (
            "fabric run --accelerator gpu --devices auto train.py",
            "refused: --devices is 'auto', expected a number from 1",
        ),
        ("fabric run --num-nodes 2 --main-port x train.py", "refused: --master-port is 'x', expected a number from 0"),
        ("litgpt pretrain m --devices 0", "refused: --devices is '0', expected a number from 1"),
        (
            "litgpt pretrain m --num_nodes 2",
            "MASTER_PORT is not set: each of its nodes takes a port of its own",
        ),
        (
            "litgpt pretrain --config https://h/c.yaml",
            "its file https://h/c.yaml cannot be read: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, reason: str) -> None:
    assert why(line, {}, {"c.yaml": CONFIG}) == reason
