"""Parallel sizes (tensor, pipeline, data, context) whose product does not fit the number of ranks.

With a world of one rank the launcher is at fault, not the sizes: the script was started as a single process.
"""

from __future__ import annotations

from collections.abc import Mapping

from distcheck.explain.spelling import LIKELY, Spelling, told

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


_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/mesh_utils.py"
_TOPOLOGY = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/pipe/topology.py"
_XDIT = "https://github.com/xdit-project/xDiT/blob/main/xfuser/config/config.py"
_FINETRAINERS = "https://github.com/huggingface/finetrainers/blob/main/finetrainers/parallel/ptd.py"
_AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/blob/main/src/axolotl/loaders/model.py"
_VERL = "https://github.com/verl-project/verl/blob/main/verl/workers/fsdp_workers.py"
_SIZE = r"(?:(?:tensor|pipeline|model|data|sequence|context|expert|ulysses|ring|cfg|fsdp|shard|replica)[ _-]?(?:model[ _-]?)?(?:parallel\w*[ _-]?)?(?:size|degree|dim|world[ _]size)?|(?:tp|pp|dp|cp|ep|sp|mp|etp|fsdp|ulysses)(?:[ _-]?(?:size|degree|shard|replicate))?)"
_RANKS = r"(?:world[ _]?size|(?:total )?number of (?:GPUs|ranks|devices|processes|workers)|num[ _](?:gpus|devices|processes|ranks)|n_?gpus|GPU count)"
_OTHER = r"(?!.*(?:batch|heads?\b|hidden|vocab|layers|sequence length|seq_?len|tokens|dimension of|intermediate|kv_))"
"""Sizes of the model and of its input, which are divided too."""

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
    *_sizes(r"parallel_dims? invalid: .*!= ?WORLD_SIZE\W{0,3}(?P<world>\d+)", _TITAN),
    *_sizes(r"Number of devices (?P<world>\d+) must (?:equal|be >=|be equal to) the product of mesh", _JAX),
    *_sizes(r"number of devices\W{0,3}(?P<world>\d+)\W{0,3} must (?:equal|be equal to|match) the product", _JAX),
    *_sizes(r"mesh_shape\b.{0,60}\b(?:does not match|doesn't match|!=|is not equal to|incompatible with)", _JAX),
    *_sizes(r"Topology\.world_size\(\) ?= ?\d+ but dist\.get_world_size\(\) ?= ?(?P<world>\d+)", _TOPOLOGY),
    *_sizes(r"product of (?:all )?(?:the )?parallel \w+", _FINETRAINERS),
    *_sizes(r"parallelisms are incompatible with the current world size \((?P<world>\d+)\)", _AXOLOTL),
    *(
        spelling
        for words in (
            r"must be divisible by",
            r"is not divisible by",
            r"should be divisible by",
            r"must divide",
            r"does not divide",
            r"must be equal to",
            r"must equal",
            r"does not equal",
            r"is not equal to",
            r"must match",
            r"should match",
            r"does not match",
            r"is larger than",
            r"is greater than",
            r"must be less than",
            r"should be less than",
            r"cannot be larger than",
            r"cannot exceed",
            r"cannot be greater than",
            r" exceeds ",
            r"is not a multiple of",
            r"must be a multiple of",
        )
        for spelling in (
            *_sizes(
                rf"^{_OTHER}.*\b{_SIZE}\b.{{0,40}}\b ?{words} ?.{{0,40}}\b{_RANKS}\b\W{{0,4}}(?P<world>\d+)?", _VERL
            ),
            *_sizes(
                rf"^{_OTHER}.*\b{_RANKS}\b\W{{0,4}}(?P<world>\d+)?.{{0,20}}\b ?{words} ?.{{0,40}}\b{_SIZE}\b", _VERL
            ),
        )
    ),
    *_sizes(
        rf"^{_OTHER}.*\b(?:tp|dp|pp|ulysses|ring|cfg)\w*\b.{{0,80}}!= ?world_size\b\W{{0,4}}(?P<world>\d+)?", _XDIT
    ),
    *_sizes(
        rf"^{_OTHER}.*\bworld_size\b\W{{0,4}}(?P<world>\d+)?.{{0,20}}!= ?.{{0,20}}\b(?:tp|dp|pp|ulysses|ring)\w*", _XDIT
    ),
)
