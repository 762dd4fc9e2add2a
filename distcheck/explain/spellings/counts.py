"""Shapes of errors about numbers: ranks out of range or doubled, world sizes that differ, fewer GPUs than asked for.

Every trainer checks these in words of its own. They count as little as the other shapes.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import SHAPE, told

_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_RUN = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py"
_CUDA = "https://docs.pytorch.org/docs/stable/generated/torch.cuda.device_count.html"
_start = partial(told, about="start-up", weight=SHAPE, fallback=True)
_gpu = partial(told, about="GPU", weight=SHAPE, fallback=True)
_RANK = r"(?<![\w.])(?<!local )(?:global[_ ]|world[_ ]|process[_ ])?rank\b"
_OF_WORLD = r"\bworld\b|world_?size|\bnprocs?\b|num_(?:process|worker|rank)|number of (?:process|rank|worker)"
_CHECKPOINT = r"checkpoint|state[_ ]dict|optimizer|shard|resum|saved|loaded"
"""A checkpoint of another number of ranks is no fault of the start."""
_PROCESSES = r"(?:process(?:es)?|ranks?|workers?|nodes?|tasks?|hosts?)"
_GPUS = r"(?:GPU|CUDA device|device|accelerator)s?"
_OUT = "env-rank-out-of-range env-world-size-mismatch"
_TWICE = "env-rank-duplicate slurm-ntasks-vs-devices"
_DIFFER = "env-world-size-mismatch env-world-size-not-product env-rank-missing"
_NO_WARNING = r"^(?!.*\b(?:warn(?:ing)?|debug|retry(?:ing)?)\b).*"
_MISSING = "env-rank-missing net-master-unreachable torchrun-nnodes-mismatch"
_FEWER = "gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus gpu-none-visible"

SPELLINGS = (
    # A rank that its world does not have.
    _start(rf"{_RANK}.{{0,20}}\bout of (?:range|bounds)\b", _OUT, source=_C10D, near=_OF_WORLD),
    *(
        _start(rf"{_RANK}.{{0,16}}\b{words} (?:less|smaller|lower|in|between|within)\b", _OUT, source=_C10D)
        for words in ("must be", "should be", "has to be", "needs to be", "is not")
    ),
    _start(rf"\bInvalid {_RANK}\W{{0,3}}-?\d", _OUT, source=_C10D),
    _start(rf"{_RANK}.{{0,16}}(?:>=|greater than|exceeds).{{0,12}}\bworld", _OUT, source=_C10D),
    *(
        _start(
            rf"\bnode[_ -]rank\b.{{0,30}}\b(?:must|should|invalid|less|range|exceed|>=).{{0,30}}\b{words}\b",
            "torchrun-node-rank-duplicated torchrun-nnodes-mismatch env-rank-out-of-range",
            source=_RUN,
        )
        for words in ("nnodes", "number of nodes", "num_nodes")
    ),
    # Two processes with one rank.
    _start(rf"\bduplicated? {_RANK}s?(?!.*GPU)", _TWICE, source=_C10D),
    _start(r"\bsame (?:global )?rank\b(?!.*(?:shape|size|tensor|dim|matrix))", _TWICE, source=_C10D),
    *(
        _start(rf"{_RANK}\W{{0,3}}\d+\b.{{0,16}}\balready {words}\b", _TWICE, source=_C10D)
        for words in ("registered", "joined", "taken", "exists", "connected", "in use")
    ),
    # Worlds of different sizes.
    *(
        _start(rf"\bworld[_ ]?size\b.{{0,60}}\b{words}", _DIFFER, source=_C10D, unless=_CHECKPOINT)
        for words in ("mismatch", "not match", "not equal", "differs", "inconsistent")
    ),
    *(
        _start(rf"\b{words}\b.{{0,40}}\bworld[_ ]?size\b", _DIFFER, source=_C10D, unless=_CHECKPOINT)
        for words in ("mismatch", "not match", "not equal", "inconsistent")
    ),
    _start(
        r"\bexpected world[_ ]?size\W{0,4}\d+\b.{0,16}\b1\b",
        "env-world-size-1-everywhere env-rank-unset env-world-size-mismatch",
        source=_C10D,
        unless=_CHECKPOINT,
    ),
    _start(
        rf"\bexpected (?:world[_ ]?size\W{{0,4}}\d+|\d+ {_PROCESSES})\b.{{0,16}}\b(?!1\b)\d+",
        _DIFFER,
        source=_C10D,
        unless=_CHECKPOINT,
    ),
    *(
        _start(rf"\bnumber of {_PROCESSES}\b.{{0,40}}\b{words}\b", _DIFFER, source=_C10D, unless=_CHECKPOINT)
        for words in ("not match", "mismatch", "not equal")
    ),
    # Ranks that do not come.
    _start(rf"{_NO_WARNING}\bnot all (?:the )?{_PROCESSES}\b", _MISSING, source=_C10D),
    _start(rf"\bwaiting for\b.{{0,40}}\b{_PROCESSES}\b.{{0,40}}\b(?:timed out|timeout)", _MISSING, source=_C10D),
    # Fewer GPUs than are asked for.
    *(
        _gpu(
            rf"\b{verb} \d+ {_GPUS}\b.{{0,60}}\b(?:only|available|found|has|have|there (?:are|is))\b",
            _FEWER,
            source=_CUDA,
        )
        for verb in ("requested", "requests", "required", "requires", "asked for", "specified", "needs", "configured")
    ),
    _gpu(rf"\bnumber of {_GPUS}\b.{{0,30}}\b(?:greater|larger|more|exceeds).{{0,30}}\bavailable", _FEWER, source=_CUDA),
    _gpu(rf"\b(?:exceeds?|more than|greater than|larger than)\b.{{0,30}}\bavailable {_GPUS}\b", _FEWER, source=_CUDA),
    _gpu(r"\d\)? ?> ?torch\.cuda\.device_count\(\)", _FEWER, source=_CUDA),
    _gpu(rf"\bcannot (?:allocate|use|run on|find) \d+ {_GPUS}\b", _FEWER, source=_CUDA),
    _gpu(
        rf"\b{_GPUS}\b.{{0,60}}\bonly \d+ (?:\w+ )?(?:on this|available|visible|found|present|detected)",
        _FEWER,
        source=_CUDA,
    ),
    _gpu(
        rf"\bonly (?:have |has |found |see )?\d+ (?:\w+ )?{_GPUS}\b.{{0,30}}\b(?:need|required|requested|asked)",
        _FEWER,
        source=_CUDA,
    ),
    _gpu(rf"\bnot enough {_GPUS}\b", _FEWER, source=_CUDA),
)
