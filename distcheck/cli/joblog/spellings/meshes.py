"""Further words for parallel sizes that do not fit the number of ranks: torchtitan, JAX, DeepSpeed, xDiT, SGLang, vLLM, verl.

With a world of one rank the launcher is at fault, as in parallel_sizes.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distcheck.cli.joblog.spelling import LIKELY, Spelling, told

_TITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/parallel_dims.py"
_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/mesh_utils.py"
_TOPOLOGY = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/pipe/topology.py"
_XDIT = "https://github.com/xdit-project/xDiT/blob/main/xfuser/config/config.py"
_FINETRAINERS = "https://github.com/huggingface/finetrainers/blob/main/finetrainers/parallel/ptd.py"
_AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/blob/main/src/axolotl/loaders/model.py"
_VERL = "https://github.com/verl-project/verl/blob/main/verl/workers/fsdp_workers.py"
_RULES = "mesh-size-mismatch env-world-size-mismatch"
_ALONE = "The script was started as one process, and its parallel sizes need more: start it with torchrun or mpirun."
_SIZE = r"(?:(?:tensor|pipeline|model|data|sequence|context|expert|ulysses|ring|cfg|fsdp|shard|replica)[ _-]?(?:model[ _-]?)?(?:parallel\w*[ _-]?)?(?:size|degree|dim|world[ _]size)?|(?:tp|pp|dp|cp|ep|sp|mp|etp|fsdp|ulysses)(?:[ _-]?(?:size|degree|shard|replicate))?)"
_RANKS = r"(?:world[ _]?size|(?:total )?number of (?:GPUs|ranks|devices|processes|workers)|num[ _](?:gpus|devices|processes|ranks)|n_?gpus|GPU count)"
_OTHER = r"(?!.*(?:batch|heads?\b|hidden|vocab|layers|sequence length|seq_?len|tokens|dimension of|intermediate|kv_))"
"""Sizes of the model and of its input, which are divided too."""


def _alone(values: Mapping[str, str]) -> bool:
    return values.get("world") in {"1", "-1", "0"}


def _several(values: Mapping[str, str]) -> bool:
    return not _alone(values)


def _sizes(pattern: str, source: str) -> tuple[Spelling, Spelling]:
    """Return the spellings of a message that names the size of the world: of several ranks, and of one."""
    return (
        told(pattern, _RULES, about="start-up", weight=LIKELY, source=source, only=_several),
        told(pattern, about="start-up", weight=LIKELY, source=source, only=_alone, says=_ALONE),
    )


SPELLINGS = (
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
