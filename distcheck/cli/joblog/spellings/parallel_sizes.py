"""Parallel sizes (tensor, pipeline, data, context) whose product does not fit the number of ranks.

With a world of one rank the launcher is at fault, not the sizes: the script was started as a single process.
"""

from __future__ import annotations

from collections.abc import Mapping

from distcheck.cli.joblog.spelling import LIKELY, Spelling, told

_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/distributed/parallel_state.py"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py"
_NANOTRON = "https://github.com/huggingface/nanotron/blob/main/src/nanotron/parallel/context.py"
_TITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/parallel_dims.py"
_MESH = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/device_mesh.py"
_PIPELINE = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/pipe/module.py"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/parallelism_config.py"
_TENSORRT = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/runtime/worldConfig.cpp"
_LLAMA = "https://github.com/meta-llama/llama/blob/main/llama/generation.py"
_RULES = "mesh-size-mismatch env-world-size-mismatch"
_ALONE = "The script was started as one process, and its parallel sizes need more: start it with torchrun or mpirun."
_WORLD = r"\W{0,4}(?P<world>\d+)"


def _alone(values: Mapping[str, str]) -> bool:
    return values.get("world") in {"1", "-1", "0"}


def _several(values: Mapping[str, str]) -> bool:
    return not _alone(values)


def _sizes(pattern: str, source: str, near: str = "") -> tuple[Spelling, Spelling]:
    """Return the spellings of a message that names the size of the world: of several ranks, and of one."""
    return (
        told(pattern, _RULES, about="start-up", weight=LIKELY, source=source, only=_several, near=near),
        told(pattern, about="start-up", weight=LIKELY, source=source, only=_alone, near=near, says=_ALONE),
    )


SPELLINGS = (
    # Megatron and what is derived from it: NeMo, vLLM, SGLang, verl, DeepSpeed's and Alibaba's forks
    *_sizes(rf"world[_ ]size`?{_WORLD}\)? is not (?:equal to|divisible by|a multiple of) (?!.*batch)", _VLLM),
    *_sizes(
        r"world[_ ]size is not (?:equal to|divisible by|a multiple of) (?!.*batch)(?:.*?parallel size\D{0,4}\d+)?",
        _MEGATRON,
    ),
    *_sizes(rf"world[_ ]size(?:{_WORLD}\)?)? (?:must|should|has to|needs to) be (?:divisible|a multiple)", _MEGATRON),
    *_sizes(
        r"(?:must|should) (?:be )?(?:equal to|equal|match) (?:the )?(?:actual )?world[_ ]size"
        r"(?:\W{0,4}(?P<world>\d+))?",
        _NANOTRON,
        near=r"parallel|tensor|pipeline|para_size|replicas|mesh|product",
    ),
    *_sizes(r"requires? to (?:run|train) all replicas", _NANOTRON),
    *_sizes(rf"Invalid parallel dims: (?:.*!= WORLD_SIZE{_WORLD})?", _TITAN),
    *_sizes(rf"Mesh should not be bigger than default world size(?:{_WORLD})?, but", _MESH),
    *_sizes(rf"must divide distributed world size{_WORLD}", _PIPELINE),
    *_sizes(r"total_size \(\d+\) does not match num_processes \((?P<world>\d+)\)", _ACCELERATE),
    *_sizes(rf"Engine world size \(\d+\) != Runtime world size{_WORLD}", _TENSORRT),
    *_sizes(rf"Loading a checkpoint for MP=[1-9]\d* but world size is{_WORLD}", _LLAMA),
    told(
        r"Loading a checkpoint for MP=0 but",
        about="application",
        weight=LIKELY,
        source=_LLAMA,
        says="The folder of the checkpoint has no parts of the model in it: check its path.",
    ),
    told(
        r"Assertion failed: mpiSize == tp",
        about="start-up",
        weight=LIKELY,
        source=_TENSORRT,
        says="mpirun started fewer or more processes than the engine's parallel sizes need.",
    ),
    told(
        r"expected local-rank to be the same as rank % device-count",
        about="start-up",
        weight=LIKELY,
        source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/initialize.py",
        says="Megatron needs as many processes on each node as the node has visible GPUs.",
    ),
    told(
        r"batch[_ ]?size\b.{0,60}(?:divisible by|multiple of).{0,40}(?:world[_ ]size|number of (?:GPUs|processes|devices)|data[_ ]parallel)",
        about="application",
        weight=LIKELY,
        source=_MEGATRON,
        says="The batch size does not fit the number of ranks.",
    ),
)
