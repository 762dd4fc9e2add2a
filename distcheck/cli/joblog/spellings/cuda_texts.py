"""CUDA's rarer errors by their text, whoever writes it: torch, NCCL, Triton, nccl-tests, ONNX Runtime, CuPy."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CAUSE, LIKELY, SYMPTOM, Spelling, told

_RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_text = partial(told, source=_RUNTIME)
_CALL = r"(?:cuda|\bhip|\bcu(?:Ctx|Device|Get|Init|Launch|Link|Mem|Module|Stream))[A-Z_ :\[\]].{0,90}"
"""What stands before the text on its line: CUDA error:, Cuda failure 3 ', Triton Error [CUDA]:, cudaSetDevice failed:"""
_GRAPH = "The program used a stream or an event in a way that is not allowed while a CUDA graph is captured."
_LAUNCH = "The program launched a kernel with a shape or with resources that this GPU does not have."
_CONTEXT = "The program used a CUDA context, memory or event that another GPU owns or that no longer exists."
_MIXED = "The driver and the CUDA libraries do not fit. Compare nvidia-smi with `python -m torch.utils.collect_env`."
_NOT_SUPPORTED = (
    "The driver does not support the call on this GPU, as with virtual GPUs, WSL2 and some desktop GPUs. For NCCL, try"
    " NCCL_CUMEM_ENABLE=0 and NCCL_P2P_DISABLE=1."
)
_JIT = "The driver's compiler for PTX is missing. Give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility."
_LICENSE = "The virtual GPU has no license, which limits it. See nvidia-smi -q, and the license server."
_UNNAMED = "A CUDA call failed for a reason that the driver does not name. Look for Xids in the kernel log."


def _line(text: str, rules: str = "", *, weight: int = LIKELY, says: str = "") -> Spelling:
    return _text(_CALL + text, rules, about="GPU", weight=weight, says=says)


def _bug(text: str, says: str) -> Spelling:
    return _text(_CALL + text, about="application", weight=LIKELY, says=says)


SPELLINGS = (
    _line(r"initialization error", "gpu-cuda-init-failed"),
    _line(r"OS call failed or operation not supported on this OS", "gpu-cuda-init-failed"),
    _line(r"\W'?unknown error", weight=SYMPTOM, says=_UNNAMED),
    _line(r"PTX JIT compilation (?:failed|was disabled)", "sw-arch-unsupported sw-driver-too-old"),
    _line(r"PTX JIT compiler library not found", says=_JIT, weight=CAUSE),
    _line(r"(?:named|shared object) symbol not found", says=_MIXED),
    _line(r"shared object initialization failed", says=_MIXED),
    _line(r"doesn't have valid Grid license", says=_LICENSE, weight=CAUSE),
    _line(r"operation not supported(?! on)", says=_NOT_SUPPORTED),
    _line(r"the remote procedural call between the MPS server", "gpu-mps-active"),
    _line(r"the hardware resources required to (?:create MPS|device connections)", "gpu-mps-active"),
    _line(r"MPS client terminated", "gpu-mps-active"),
    _bug(r"operation not permitted (?:when stream|on an event)", _GRAPH),
    _bug(r"legacy stream depend on a capturing", _GRAPH),
    _bug(r"operation failed due to a previous error during capture", _GRAPH),
    _bug(r"the graph update was not performed", _GRAPH),
    _bug(r"too many (?:resources requested for launch|blocks in cooperative launch)", _LAUNCH),
    _bug(r"invalid configuration argument", _LAUNCH),
    _bug(r"kernel launch error has occurred due to cluster misconfiguration", _LAUNCH),
    _bug(r"invalid device context", _CONTEXT),
    _bug(r"context is destroyed", _CONTEXT),
    _bug(r"peer access (?:is already|has not been) enabled", _CONTEXT),
    _bug(r"pointer does not correspond to a registered", _CONTEXT),
    _bug(r"requested memory range is already mapped", _CONTEXT),
)
"""They come after the tables that know more of the same text."""
