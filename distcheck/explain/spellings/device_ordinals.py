"""A GPU whose number the process does not have, or more GPUs than there are: as other programs than torch word it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, told

_TENSORFLOW = "https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core/common_runtime/gpu"
_PLACER = "https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/common_runtime/placer.cc"
_PADDLE = "https://github.com/PaddlePaddle/Paddle/blob/develop/paddle/phi/backends/gpu/cuda/cuda_info.cc"
_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/xla_bridge.py"
_NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests/blob/master/src/common.cu"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/config"
_TGI = "https://github.com/huggingface/text-generation-inference/blob/main/launcher/src/main.rs"
_YOLO = "https://github.com/ultralytics/yolov5/blob/master/utils/torch_utils.py"
_SAMPLES = "https://github.com/NVIDIA/cuda-samples"
_DOCKER = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_KUBELET = "https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/devicemanager/manager.go"
_SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/model_executor/model_runner.py"
_ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_gpu = partial(told, about="GPU", weight=LIKELY)
_BEYOND = "env-local-rank-out-of-range gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus"
_FEWER = "gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus gpu-none-visible"
_NONE = "gpu-none-visible gpu-cuda-init-failed"
_COUNTED = r"(?:available|visible|found|detected|present|requested)"

_MEMORY = re.compile(r"has ([\d.]+) ([KMGT])iB")
_GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2**10}
_MUCH_MORE = 1.5
"""Ranks that share a GPU hold about the same memory each."""


def _held_by_others(values: Mapping[str, str]) -> bool:
    others, own = (
        sum(float(number) * _GIB[unit.upper()] for number, unit in _MEMORY.findall(values[name]))
        for name in ("others", "own")
    )
    return others > _MUCH_MORE * own


SPELLINGS = (
    # torch lists who holds the memory: CUDACachingAllocator, of torch 2.1 and later
    _gpu(
        r"(?P<others>(?:Process \d+ has [\d.]+ [KMGT]iB memory in use\. ?)+)"
        r"Including non-PyTorch memory, (?P<own>this process has [\d.]+ [KMGT]iB)",
        "gpu-other-processes gpu-duplicate env-local-rank-unset",
        weight=CAUSE,
        source=_ALLOCATOR,
        only=_held_by_others,
    ),
    # nccl-tests number the GPUs themselves
    _gpu(
        r"Test (?:CUDA|HIP) failure .*(?:invalid device ordinal|InvalidDevice\b)",
        "gpu-fewer-than-needed gpu-none-visible",
        weight=CAUSE,
        source=_NCCL_TESTS,
    ),
    # a UUID in CUDA_VISIBLE_DEVICES, which the program takes for a number
    _gpu(
        r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-",
        about="start-up",
        weight=CAUSE,
        source=_VLLM,
        says="The program cannot read the UUIDs in CUDA_VISIBLE_DEVICES. Give it the GPUs' numbers.",
    ),
    # beyond the last: gpu_device.cc, gpu_id_manager.cc and stream_executor of TensorFlow, of all versions
    _gpu(r"'visible_device_list' listed an invalid (?:GPU|device) id", _BEYOND, source=_TENSORFLOW),
    _gpu(r"Invalid device ordinal value \(\d+\)", _BEYOND, source=_TENSORFLOW),
    _gpu(r"explicitly assigned to \S*GPU:\d+\S* but available devices are \[(?!.*GPU:)", _NONE, source=_PLACER),
    _gpu(r"explicitly assigned to \S*GPU:\d+\S* but available devices are \[.*GPU:", _BEYOND, source=_PLACER),
    _gpu(r"Device id must be less than GPU count.*count is: 0\b", _NONE, source=_PADDLE),
    _gpu(r"Device id must be less than GPU count(?!.*count is: 0\b)", _BEYOND, source=_PADDLE),
    _gpu(r"device_id should be within \[", _BEYOND, source=_PADDLE),
    _gpu(r"\bDevice index out of range: ", _BEYOND, source=_TENSORFLOW),
    _gpu(
        r"No CUDA devices? (?:is|are|was|were) (?:available|found|detected)",
        "gpu-none-visible gpu-cuda-init-failed",
        source=_SAMPLES,
    ),
    _gpu(r"\bonly 0 devices available", _NONE, source=_SAMPLES),
    _gpu(r"Invalid GPU device: \d+, only \d+ available", _BEYOND, source=_TENSORFLOW),
    _gpu(  # a list of GPUs, indexed by the rank
        r"IndexError: list index out of range",
        _BEYOND,
        source=_PYTHON,
        trace=r"\b(?:gpu|device|cuda)\w*\[[^\]]*(?:local_|hvd\.)?rank\w*(?:\(\))?\]",
    ),
    _gpu(r"Invalid CUDA '--device \S+ requested", "gpu-fewer-than-needed gpu-none-visible", source=_YOLO),
    # fewer than asked for
    _gpu(r"Invalid number of GPUs: \d+ requested but only \d", _FEWER, source=_NCCL_TESTS),
    _gpu(r"\bonly \d+ devices available, \d+ requested", _FEWER, source=_SAMPLES),
    _gpu(
        r"\b(?:larger|greater|more|higher) than (?:the )?(?:total )?number of (?:available |visible )?(?:CUDA )?(?:GPUs|devices)\b(?! in the placement)",
        _FEWER,
        source=_VLLM,
    ),
    _gpu(rf"\bGPUs?\b.{{0,60}}\bbut only \d+ (?:GPUs? )?(?:are |is |were )?{_COUNTED}", _FEWER, source=_VLLM),
    _gpu(
        r"\bnumber of (?:available |visible )?GPUs\b.{0,40}\b(?:less|fewer|smaller) than\b",
        _FEWER,
        source=_VLLM,
        unless=r"number of GPUs\b.{0,40}\bmust (?:not )?be",
    ),
    _gpu(r"\bGPUs\b.{0,20}\b(?:is|are) not enough\b", _FEWER, source=_VLLM),
    _gpu(r"NotEnoughCUDADevices", _FEWER, source=_TGI),
    _gpu(r"\bonly found \d+ CUDA devices", _FEWER, source=_TGI),
    _gpu(r"no healthy devices present; cannot allocate", "gpu-fewer-than-needed gpu-xid-recent", source=_KUBELET),
    # taken by others
    _gpu(r"Some GPUs may be occupied by other processes", "gpu-other-processes", source=_SGLANG),
    _gpu(r"GPU memory was not properly cleaned up before initializing", "gpu-other-processes", source=_VLLM),
    # none
    _gpu(r"no platforms that are instances of (?:gpu|cuda|rocm) are present", _NONE, source=_JAX),
    _gpu(r"No GPU/TPU found, falling back to CPU", _NONE, weight=HINT, source=_JAX),
    _gpu(r"Cannot dlopen some GPU libraries", _NONE, weight=HINT, source=_TENSORFLOW),
    _gpu(r"Unknown runtime specified nvidia", "gpu-none-visible", source=_DOCKER),
    _gpu(r"unknown or invalid runtime name: nvidia", "gpu-none-visible", source=_DOCKER),
    _gpu(r"nvidia-smi: (?:command )?not found", _NONE, weight=HINT, source=_SMI),
    _gpu(r"No such file or directory: '(?:\S*/)?nvidia-smi'", _NONE, weight=HINT, source=_SMI),
)
"""A job that cannot start for lack of a GPU; where a rule of another table knows the same line, that one goes first."""
