"""AMD's GPUs: ROCm's runtime, its libraries, RCCL and the driver amdgpu in the kernel's log."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, NOISE, SYMPTOM, told

_RUNTIME = "https://github.com/ROCm/ROCR-Runtime/tree/master/src/core/runtime"
_HSA = "https://github.com/ROCm/ROCR-Runtime/blob/master/src/inc/hsa.h"
_BLAS = "https://github.com/ROCm/rocBLAS/blob/develop/library/src/tensile_host.cpp"
_DRIVER = "https://github.com/torvalds/linux/tree/master/drivers/gpu/drm/amd/amdgpu"
_RCCL = "https://github.com/ROCm/rccl/blob/develop/src/init.cc"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CUDABlas.cpp"
_SMI = "https://github.com/ROCm/amdsmi"
_gpu = partial(told, about="GPU", weight=LIKELY)
_FAULT = "A kernel accessed memory that the GPU does not have mapped: an error of the program, or of the driver."
_HANG = "The GPU hung or reported a hardware error. Look for amdgpu in the kernel log."
_IOMMU = "RCCL warns that the kernel lacks iommu=pt, without which transfers between AMD GPUs can hang."

SPELLINGS = (
    # the runtime: runtime.cpp, amd_gpu_agent.cpp, hsa_status_t
    _gpu(r"Memory access fault by GPU node-\d+", source=_RUNTIME, says=_FAULT),
    _gpu(r"HW Exception by GPU node-\d+", source=_RUNTIME, says=_HANG),
    _gpu(r"HSA_STATUS_ERROR_INVALID_ISA", "sw-arch-unsupported", source=_HSA),
    _gpu(r"HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS", "sw-arch-unsupported", weight=SYMPTOM, source=_HSA),
    _gpu(r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_FAULT|MEMORY_APERTURE_VIOLATION)", source=_HSA, says=_FAULT),
    _gpu(
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES.*(?:dispatch|out of resources|code: 0x1008)",
        about="application",
        source=_HSA,
        says="The GPU ran out of memory, or the kernel's scratch space does not fit.",
        unless=r"rocminfo|ROCk",
    ),
    _gpu(r"AMDSMI_STATUS_(?:DRIVER_NOT_LOADED|NO_DRV|INIT_ERROR)\b", "gpu-none-visible", source=_SMI),
    _gpu(r"Driver not initialized \(amdgpu not found", "gpu-none-visible", source=_SMI),
    # libraries
    _gpu(r"Cannot read \S*Tensile\w*\S* .*for GPU arch", "sw-arch-unsupported", source=_BLAS),
    _gpu(r"rocBLAS error: .*TensileLibrary\S* .*(?:Illegal seek|No such file)", "sw-arch-unsupported", source=_BLAS),
    _gpu(
        r"hipBLASLt on an unsupported architecture",
        weight=NOISE,
        source=_TORCH,
        says="torch uses hipBLAS instead.",
    ),
    # the kernel's log
    _gpu(r"amdgpu: \[\w+hub\d*\] (?:no-)?retry page fault", source=_DRIVER, says=_FAULT),
    _gpu(r"amdgpu.*\bring \S+ timeout", source=_DRIVER, says=_HANG),
    _gpu(r"amdgpu.*\bGPU reset (?:begin|failed)", "gpu-needs-reset", weight=SYMPTOM, source=_DRIVER),
    _gpu(
        r"amdgpu.*\b[1-9]\d* (?:new )?uncorrectable hardware errors? detected in", "gpu-ecc-uncorrected", source=_DRIVER
    ),
    _gpu(r"amdgpu.*\bFatal error during GPU init", "gpu-none-visible gpu-cuda-init-failed", source=_DRIVER),
    # RCCL, at the start of healthy jobs too
    _gpu(r"Missing \"iommu=pt\" from kernel command line", weight=HINT, source=_RCCL, says=_IOMMU),
    _gpu(
        r"Missing \"HSA_FORCE_FINE_GRAIN_PCIE=1\" from environment",
        weight=NOISE,
        source=_RCCL,
        says="RCCL advises a setting that only some GPUs need.",
    ),
    _gpu(
        r"NUMA auto balancing enabled which can lead to variability",
        weight=NOISE,
        source=_RCCL,
        says="RCCL advises to disable NUMA balancing, which only makes it slower.",
    ),
)
