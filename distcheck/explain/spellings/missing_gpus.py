"""No GPU, too few, or one that the software cannot use: as torch, trainers, servers and schedulers word it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, SYMPTOM, told

_TORCH = "https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py"
_ACCELERATOR = "https://github.com/pytorch/pytorch/blob/main/c10/core/DeviceGuard.h"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/__init__.py"
_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/accelerators/cuda.py"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/config"
_NVRTC = "https://docs.nvidia.com/cuda/nvrtc/index.html"
_EXTENSION = "https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py"
_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_ROCMINFO = "https://github.com/ROCm/rocminfo/blob/master/rocminfo.cc"
_gpu = partial(told, about="GPU", weight=LIKELY)
_NONE = "gpu-none-visible sw-torch-cpu-build"
_FEWER = "gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus gpu-none-visible"
_ARCH = "sw-arch-unsupported"
_OLD_PTXAS = "The assembler ptxas is older than the compiler that wrote its input: update CUDA, or TRITON_PTXAS_PATH."
_NGC = "https://docs.nvidia.com/deeplearning/frameworks/user-guide/index.html"
_APPTAINER = "https://apptainer.org/docs/user/main/gpu.html"
_TOO_OLD = "The program needs a newer generation of GPUs than this one, or another data type or kernel."

SPELLINGS = (
    # none
    _gpu(r"Cannot access accelerator device when none is available", _NONE, source=_ACCELERATOR),
    _gpu(r"CUDA is not available(?! for)", _NONE, weight=SYMPTOM, source=_TORCH),
    _gpu(r"torch\.cuda\.is_available\(\) (?:is|returns?|returned|should be) (?:False|True)", _NONE, source=_TORCH),
    _gpu(r"Torch is not able to use GPU", _NONE, source=_TORCH),
    _gpu(r"No supported gpu backend found", _NONE, source=_LIGHTNING),
    _gpu(r"can ?not run on your system since the accelerator is not available", _NONE, source=_LIGHTNING),
    _gpu(r"Failed to infer device type", _NONE, source=_VLLM),
    _gpu(r"no GPUs were found", _NONE, source=_TORCH),
    _gpu(r"no GPUs? detected", _NONE, source=_TORCH),
    _gpu(r"no CUDA GPUs? (?:found|detected)", _NONE, source=_TORCH),
    _gpu(r"no NVIDIA GPUs? (?:found|detected)", _NONE, source=_TORCH),
    _gpu(r"Can't initialize NVML", "gpu-nvml-init-failed gpu-none-visible", source=_TORCH),
    _gpu(r"NVML Shared Library Not Found", "gpu-nvml-init-failed gpu-none-visible", source=_SMI),
    _gpu(r"Unable to open /dev/kfd", "gpu-none-visible", source=_ROCMINFO),
    _gpu(r"hsa_init failed", "gpu-none-visible gpu-cuda-init-failed", source=_ROCMINFO),
    _gpu(r"Could not initialize Tensile host: No devices found", "gpu-none-visible", source=_ROCMINFO),
    _gpu(r"open /dev/kfd: ", "gpu-none-visible", source=_ROCMINFO),
    _gpu(r"ROCk module is NOT loaded", "gpu-none-visible gpu-cuda-init-failed", source=_ROCMINFO),
    _gpu(
        r"returned HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "gpu-none-visible gpu-cuda-init-failed",
        weight=LIKELY,
        source=_ROCMINFO,
        near=r"rocminfo|ROCk",
    ),
    _gpu(r"NVIDIA Driver was not detected", "gpu-none-visible gpu-cuda-init-failed", weight=SYMPTOM, source=_NGC),
    _gpu(r"NVIDIA Driver is present, but CUDA failed to initialize", "gpu-cuda-init-failed", source=_NGC),
    _gpu(
        r"container was built for NVIDIA Driver Release .*compatibility mode is UNAVAILABLE",
        "sw-driver-too-old",
        weight=CAUSE,
        source=_NGC,
    ),
    _gpu(r"Could not find any (?:nv|rocm) files on this host", "gpu-none-visible", weight=HINT, source=_APPTAINER),
    _gpu(r"could not open the device file /dev/nvidia", "gpu-none-visible gpu-cuda-init-failed", source=_NGC),
    _gpu(r"\bopen\W.{0,12}/dev/nvidia(?:ctl|-uvm|\d).{0,20}(?:No such|denied|not permitted)", _NONE, source=_NGC),
    # too few
    _gpu(r"required GPUs exceeds the total number of available GPUs(?! in the placement group)", _FEWER, source=_VLLM),
    _gpu(
        r"exceeds? the (?:total )?number of (?:available|visible) (?:GPUs|devices|CUDA devices)(?! in the placement)",
        _FEWER,
        source=_VLLM,
    ),
    _gpu(r"not enough (?:available )?GPUs\b", _FEWER, source=_VLLM),
    _gpu(
        r"(?:larger|greater) than the (?:total )?number of (?:available|visible) (?:GPUs|devices|CUDA)",
        _FEWER,
        source=_VLLM,
    ),
    _gpu(
        r"(?:larger|greater|more) than (?:the )?(?:available|visible) (?:GPUs|devices|CUDA devices)",
        _FEWER,
        source=_VLLM,
    ),
    _gpu(r"only \d+ GPUs? (?:are|is|were) (?:available|visible|found|detected)", _FEWER, source=_VLLM),
    # of an architecture without code
    _gpu(r"invalid value for --gpu-architecture", _ARCH, source=_NVRTC),
    _gpu(r"Unknown CUDA arch \(\d+\.\d+\w?\) or GPU not supported", _ARCH, source=_EXTENSION),
    _gpu(r"PyTorch no longer supports this GPU because it is too old", _ARCH, source=_TORCH),
    _gpu(r"ptxas fatal\s*: Value 'sm_\w+' is not defined", _ARCH, source=_NVRTC),
    _gpu(r"'sm_\w+' is not a recognized processor", _ARCH, source=_NVRTC),
    _gpu(r"only supports? (?:Turing|Ampere|Ada|Hopper|Blackwell)\w* GPUs", source=_TORCH, says=_TOO_OLD),
    _gpu(r"only supported on GPUs with compute capability", source=_TORCH, says=_TOO_OLD),
    _gpu(r"PTX \.version \d+\.\d+ does not support \.target sm_", _ARCH, source=_NVRTC),
    _gpu(r"Unsupported \.version \d+\.\d+; current version is", source=_NVRTC, says=_OLD_PTXAS),
    _gpu(
        r"driver's CUDA version is [\d.]+ which is older than the ptxas",
        "sw-driver-too-old",
        weight=HINT,
        source="https://github.com/openxla/xla/blob/main/xla/service/gpu/nvptx_compiler.cc",
    ),
    # links
    _gpu(r"Unable to retrieve NVLink information as all links are inactive", "gpu-nvlink-down", source=_SMI),
    # a torch without distributed
    _gpu(r"'torch\._C\._distributed_c10d'", "torch-backend-missing sw-torch-cpu-build", source=_C10D),
    _gpu(  # others are missing because torch is of another version
        r"module 'torch\.distributed' has no attribute '(?:init_process_group|is_initialized|get_(?:rank|world_size)|new_group|ReduceOp|group|ProcessGroup|barrier|all_reduce|broadcast)'",
        "torch-backend-missing sw-torch-cpu-build",
        weight=CAUSE,
        source=_C10D,
    ),
    _gpu(r"Unknown c10d backend type", "torch-backend-missing", source=_C10D),
    _gpu(r"Invalid backend: '?(?:nccl|gloo|mpi|ucc)", "torch-backend-missing", source=_C10D),
)
