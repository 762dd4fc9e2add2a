"""Parameters and batches that are not the same on all ranks, as trainers that compare them say it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, told

_JOIN = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/algorithms/join.py"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/utils.py"
_app = partial(told, about="application")

SPELLINGS = (
    _app(r"Detected at least one rank that exhausted inputs", "step-skipped", source=_JOIN),
    _app(r"Rank \d+ (?:has )?exhausted (?:all |its )?inputs", "step-skipped", source=_JOIN),
    *(
        _app(pattern, "step-parameters-differ step-model-differs", weight=LIKELY, source=_MEGATRON)
        for pattern in (
            r"Parameter hashes not matching",
            r"parameters? (?:hash\w*|checksums?|norms?)\b.{0,40}\b(?:differ|do not match|don't match|mismatch)",
        )
    ),
    *(
        _app(
            rf"{words}\b.{{0,30}}\b(?:across|between|among) (?:all )?(?:the )?(?:ranks|replicas|workers)",
            "step-parameters-differ step-model-differs",
            weight=LIKELY,
            source=_MEGATRON,
        )
        for words in (
            r"parameters? differ",
            r"weights? differ",
            r"parameters are (?:different|not the same|not identical)",
        )
    ),
)
