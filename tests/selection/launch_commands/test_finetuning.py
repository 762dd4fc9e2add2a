"""What the words of llamafactory-cli, tune and axolotl say about their ranks."""

from __future__ import annotations

import pytest
from selection.launch_commands.reading import reading, script, why

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import Untold

FILES = {
    "tp.yml": "base_model: m\ndatasets:\n  - path: p\ntensor_parallel_size: 2\ndp_shard_size:\ndp_replicate_size: 1\n",
    "hsdp.yml": "dp_shard_size: 4\ncontext_parallel_size: 2\n",
    "ray.yml": "use_ray: true\n",
    "ep.yml": "expert_parallel_size: 2\ntensor_parallel_size: 2\n",
}


def of(line: str, **environ: str) -> Stated | Untold | None:
    return reading(line, environ, FILES)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, ("gpu",)),
        ({"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "4"}, ("4",)),
        ({"NPROC_PER_NODE": "4", "MASTER_PORT": "29500"}, ("4", 1, 0, 0, "127.0.0.1", 29500)),
        (
            {"FORCE_TORCHRUN": "1", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            ("gpu", 2, 0, 1, "h", 29500),
        ),
        (
            {"RDZV_ID": "7", "MIN_NNODES": "1", "MAX_NNODES": "3", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            ("gpu", 3, 1, None, "h", 29500, "7"),
        ),
        ({"USE_KT": "true"}, ("1",)),
    ],
)
def test_llamafactory_is_told_by_variables(environ: dict[str, str], place: tuple[int | str | None, ...]) -> None:
    for line in ("llamafactory-cli train examples/train_lora/llama3_lora_sft.yaml", "lmf train x.yaml"):
        assert of(line, **environ) == Stated("llamafactory-cli train", *place, environment=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tune run lora_finetune_single_device --config llama2/7B_lora_single_device", Stated("tune run")),
        ("tune run --nproc_per_node 4 full_finetune_distributed --config c --nnodes 3", Stated("tune run", "4")),
        (
            "tune run --nnodes 2 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint node1:29500 r",
            Stated("tune run", "8", 2, 0, None, "node1", 29500, "101"),
        ),
        ("tune download m", None),
        ("axolotl train tp.yml --launcher python", Stated("axolotl train")),
        (
            "axolotl train tp.yml --launcher torchrun -- --nproc_per_node=2",
            Stated("torchrun", "2", mesh="dp_shard=-1,tp=2"),
        ),
        (
            "axolotl train gone.yml --nproc_per_node 2 --launcher torchrun -- --nnodes=1",
            Stated("torchrun", "2"),
        ),
        (
            "axolotl train tp.yml --tensor-parallel-size 1 --launcher=torchrun -- --nproc_per_node=2",
            Stated("torchrun", "2"),
        ),
        (
            "axolotl train hsdp.yml --launcher torchrun -- --nproc_per_node=8",
            Stated("torchrun", "8", mesh="dp_replicate=-1,dp_shard=4,cp=2"),
        ),
        (
            "axolotl train gone.yml --dp-replicate-size 2 --launcher torchrun -- --nproc_per_node 8",
            Stated("torchrun", "8", mesh="dp_replicate=2,dp_shard=-1"),
        ),
        ("axolotl train ep.yml --launcher torchrun -- --nproc_per_node 8", Stated("torchrun", "8")),
        (
            "axolotl train gone.yml --launcher torchrun -- --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=h:29400",
            Stated("torchrun", "8", 2, 0, None, "h", 29400, "none"),
        ),
        ("axolotl train tp.yml --cloud modal.yml", None),
        ("axolotl preprocess tp.yml", None),
    ],
)
def test_torchruns_options_are_read_where_they_stand(line: str, expected: Stated | None) -> None:
    assert of(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("axolotl train gone.yml --launcher python", "gone.yml"),
        ("axolotl train --debug https://host/c.yaml", ""),
        ("axolotl train a.yaml --launcher torchrun -- --nproc_per_node 2", "a.yaml"),
        ("env A=b axolotl train a.yaml --launcher torchrun -- --nproc_per_node 2", ""),
        ("llamafactory-cli train sft.yaml", "sft.yaml"),
        ("llamafactory-cli train --stage sft --config c.yaml", ""),
        ("tune run --nproc_per_node 2 full_finetune_distributed --config mine.yaml lr=1", "mine.yaml"),
        ("tune run --nproc_per_node 2 full_finetune_distributed --config llama3/8B_full", ""),
        ("fabric run --devices 2 train.py --other x.py", "train.py"),
        ("composer -n 2 train.py", "train.py"),
        ("composer -n 2 -m package", ""),
        ("colossalai run --nproc_per_node 2 train.py", "train.py"),
        ("torchx run -s local_cwd dist.ddp -j 1x2 --script train.py", "train.py"),
        ("torchx run -s local_docker dist.ddp -j 1x2 --script train.py", ""),
    ],
)
def test_the_file_that_a_launcher_reads_is_known(line: str, expected: str) -> None:
    assert script(line) == expected


@pytest.mark.parametrize("line", ["tune run recipe --config c", "axolotl train tp.yml --launcher python"])
def test_one_process_may_be_a_rank_that_another_program_started(line: str) -> None:
    assert of(line, RANK="1", WORLD_SIZE="2") is None


@pytest.mark.parametrize(
    ("line", "environ", "reason"),
    [
        ("llamafactory-cli train x.yaml", {"USE_RAY": "1"}, "Ray places its ranks"),
        (
            "llamafactory-cli train x.yaml",
            {"FORCE_TORCHRUN": "1", "NNODES": "2"},
            "MASTER_PORT is not set: each of its nodes takes a port of its own",
        ),
        ("axolotl train ray.yml", {}, "Ray places its ranks"),
        ("axolotl train tp.yml --use-ray", {}, "Ray places its ranks"),
        (
            "axolotl train tp.yml --launcher torchrun -- --nproc_per_node two",
            {},
            "refused: --nproc-per-node is 'two', expected a number from 1",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, environ: dict[str, str], reason: str) -> None:
    assert why(line, environ, FILES) == reason
