"""CUDA, NVML and the driver: numbers and names of errors, as the runtime, torch and the tools write them.

Numbers of the CUDA runtime before 10.1 differ from later ones; both are here with the name that goes with them.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, LIKELY, SYMPTOM, told

_RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py"
_LAZY = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/detail/CUDAHooks.cpp"
_ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
_SMI = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
_DISTRIBUTED = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_gpu = partial(told, about="GPU")
_MEMORY = "The GPU ran out of memory. The batch, the sequence length or the model is too large for it, or other processes use it."
_AT_START = r"initialization error|_lazy_init|_cuda_init|is_available|CUDA initialization|cudaGetDeviceCount|set_device|torch\.cuda\.init|manual_seed"
"""Where CUDA starts: later, an unknown error is a fault of the GPU or of a program."""

SPELLINGS = (
    # of another process's GPU, which this one does not see
    _gpu(
        r"transport/p2p\.cc.*Cuda failure.*invalid device ordinal",
        "slurm-gpus-per-task-hides-gpus k8s-pod-host-confusion host-ptrace-pidns",
        source="https://github.com/NVIDIA/nccl/issues/1948",
    ),
    _gpu(
        r"^(?!.*nvidia-container-cli).*invalid device ordinal",
        "env-local-rank-out-of-range gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus",
        source=_RUNTIME,
    ),
    _gpu(
        r"device >= 0 && device < num_gpus",
        "env-local-rank-out-of-range gpu-fewer-than-needed gpu-cvd-mig",
        weight=LIKELY,
        source=_RUNTIME,
    ),
    _gpu(r"Invalid device id", "env-local-rank-out-of-range gpu-fewer-than-needed", weight=LIKELY, source=_TORCH),
    _gpu(r"No CUDA GPUs are available", "gpu-none-visible gpu-cvd-bad-item gpu-cvd-empty", weight=LIKELY, source=_LAZY),
    _gpu(
        r"no CUDA-capable device is detected", "gpu-none-visible gpu-cuda-init-failed", weight=LIKELY, source=_RUNTIME
    ),
    _gpu(
        r"Found no NVIDIA driver on your system", "gpu-none-visible gpu-nvml-init-failed", weight=LIKELY, source=_LAZY
    ),
    _gpu(
        r"ProcessGroupNCCL is only supported with GPUs",
        "gpu-none-visible torch-backend-missing",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    _gpu(
        r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
        "gpu-none-visible sw-torch-cpu-build",
        weight=LIKELY,
        source="https://github.com/pytorch/pytorch/blob/main/torch/serialization.py",
    ),
    _gpu(r"could not select device driver .*capabilities: \[\[gpu", "gpu-none-visible", source=_TOOLKIT),
    _gpu(
        r"devices? (?:are|is|is/are|\(s\) is/are) busy or unavailable",
        "gpu-exclusive-mode gpu-prohibited-mode",
        source=_RUNTIME,
    ),
    _gpu(
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "gpu-exclusive-mode gpu-prohibited-mode",
        source=_RUNTIME,
    ),
    _gpu(r"system not yet initialized", "gpu-fabric-manager-down", source=_RUNTIME),
    _gpu(r"CUDA_ERROR_SYSTEM_NOT_READY", "gpu-fabric-manager-down", source=_RUNTIME),
    _gpu(r"unsupported display driver / cuda driver combination", "sw-compat-libcuda", source=_RUNTIME),
    _gpu(r"forward compatibility was attempted on non supported HW", "sw-compat-libcuda", source=_RUNTIME),
    _gpu(r"CUDA_ERROR_(?:COMPAT_NOT_SUPPORTED_ON_DEVICE|SYSTEM_DRIVER_MISMATCH)", "sw-compat-libcuda", source=_RUNTIME),
    _gpu(r"CUDA driver is a stub library", "sw-compat-libcuda", source=_RUNTIME),
    _gpu(
        r"API call is not supported in the installed CUDA driver",
        "sw-driver-too-old sw-compat-libcuda",
        source=_RUNTIME,
    ),
    _gpu(
        r"^(?!.*transport/nvls\.cc).*(?:cuda runtime error|CUDA error|error=|Error|Cuda failure)\W{0,3}(?:999|30)\)?\W{1,3}(?:CUDA )?'?unknown error",
        "gpu-cuda-init-failed",
        source=_RUNTIME,
    ),
    _gpu(r"CUDA unknown error", "gpu-cuda-init-failed", source=_LAZY),
    _gpu(
        r"CUDA error: unknown error",
        "gpu-cuda-init-failed",
        source=_RUNTIME,
        near=_AT_START,
    ),
    _gpu(
        r"CUDA error: unknown error",
        source=_RUNTIME,
        says="A CUDA call failed for a reason that the driver does not name. Look for Xids in the kernel log.",
        unless=_AT_START,
    ),
    _gpu(r"Error 304: OS call failed", "gpu-cuda-init-failed", source=_RUNTIME),
    _gpu(
        r"CUDA initialization: (?!.*(?:driver on your system is too old|80[0-9]|no NVIDIA driver))",
        "gpu-cuda-init-failed",
        weight=SYMPTOM,
        source=_LAZY,
    ),
    _gpu(r"driver on your system is too old", "sw-driver-too-old", source=_LAZY),
    _gpu(
        r"CUDA driver version is insufficient for CUDA runtime version",
        "sw-driver-too-old gpu-none-visible sw-driver-differs-nodes",
        source=_RUNTIME,
    ),
    _gpu(r"provided PTX was compiled with an unsupported toolchain", "sw-driver-too-old", source=_RUNTIME),
    _gpu(r"no kernel image is available", "sw-arch-unsupported", source=_RUNTIME),
    _gpu(r"is not compatible with the current PyTorch installation", "sw-arch-unsupported", source=_TORCH),
    _gpu(r"device kernel image is invalid", "sw-arch-unsupported", weight=LIKELY, source=_RUNTIME),
    _gpu(r"Torch not compiled with CUDA enabled", "sw-torch-cpu-build", source=_TORCH),
    _gpu(
        r"Distributed package doesn't have (?:NCCL|MPI|UCC|XCCL|GLOO) built in",
        "torch-backend-missing sw-torch-cpu-build",
        source=_DISTRIBUTED,
    ),
    _gpu(
        r"Distributed package doesn't have",
        "torch-backend-missing sw-torch-cpu-build",
        weight=LIKELY,
        source=_DISTRIBUTED,
    ),
    _gpu(r"uncorrectable ECC error", "gpu-ecc-uncorrected gpu-needs-reset", source=_RUNTIME),
    _gpu(r"uncorrectable NVLink error", "gpu-nvlink-errors gpu-nvlink-down", source=_RUNTIME),
    _gpu(r"Failed to initialize NVML", "gpu-nvml-init-failed", source=_SMI),
    _gpu(r"couldn't communicate with the NVIDIA driver", "gpu-nvml-init-failed", source=_SMI),
    _gpu(r"NVML.*Driver/library version mismatch", "gpu-nvml-init-failed", source=_SMI),
    _gpu(r"nvml\w*: .*version mismatch", "gpu-nvml-init-failed", source=_SMI),
    _gpu(
        r"NVMLError_(?:LibRmVersionMismatch|DriverNotLoaded|LibraryNotFound|Unknown)",
        "gpu-nvml-init-failed",
        source=_SMI,
    ),
    _gpu(r"nvmlInit_v2_\(\) INTERNAL ASSERT FAILED", "gpu-nvml-init-failed", weight=LIKELY, source=_ALLOCATOR),
    _gpu(r"nvidia-container-cli: initialization error", "gpu-nvml-init-failed", source=_TOOLKIT),
    _gpu(r"nvidia-container-cli: device error", "gpu-fewer-than-needed gpu-cvd-bad-item", source=_TOOLKIT),
    _gpu(r"No devices were found", "gpu-none-visible gpu-nvml-init-failed", source=_SMI),
    _gpu(r"Unable to determine the device handle for GPU", "gpu-fell-off-bus", source=_SMI),
    _gpu(r"GPU is lost", "gpu-fell-off-bus", source=_SMI),
    _gpu(r"(?:fallen|fell) off the bus", "gpu-fell-off-bus", source=_SMI),
    _gpu(r"GPU requires reset", "gpu-needs-reset", source=_SMI),
    _gpu(
        r"unspecified launch failure",
        weight=SYMPTOM,
        source=_RUNTIME,
        says="A CUDA kernel failed: an error of the program or a defective GPU. Look for Xids in the kernel log.",
    ),
    _gpu(
        r"invalid resource handle",
        "host-ptrace-pidns",
        weight=LIKELY,
        source=_RUNTIME,
        near=r"\bipc|cudaIpc|_share_cuda|_new_shared_cuda|custom_all_?reduce",
    ),
    _gpu(
        r"CUDA error: invalid resource handle",
        about="application",
        weight=LIKELY,
        source=_RUNTIME,
        says="The program used a stream, an event or memory of another GPU or process.",
        unless=r"\bipc|cudaIpc|_share_cuda|_new_shared_cuda|custom_all_?reduce",
    ),
    _gpu(
        r"\bout of memory\b",
        source=_RUNTIME,
        about="application",
        says=_MEMORY,
        near=r"cuda|gpu|nccl|hip|OutOfMemoryError|npu",
        unless=r"Killed process|oom-kill|oom_kill",
    ),
    _gpu(
        r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        source="https://docs.nvidia.com/cuda/cublas/#cublasstatus-t",
        about="application",
        weight=LIKELY,
        says="cuBLAS could not start, most often because the GPU's memory is full.",
    ),
    _gpu(
        r"an illegal memory access was encountered",
        source=_RUNTIME,
        about="application",
        weight=LIKELY,
        says="A CUDA kernel of the program accessed invalid memory. The trace shows a later call: repeat with CUDA_LAUNCH_BLOCKING=1.",
    ),
    _gpu(
        r"device-side assert triggered",
        source=_RUNTIME,
        about="application",
        weight=CAUSE,
        says="A CUDA kernel's assertion failed, most often an index out of range. Repeat with CUDA_LAUNCH_BLOCKING=1.",
    ),
    _gpu(
        r"Cannot re-initialize CUDA in forked subprocess",
        source=_TORCH,
        about="application",
        says="The program used CUDA before it forked. Start its processes with the method spawn.",
    ),
    _gpu(r"cudaErrorInvalidDevice\b", "env-local-rank-out-of-range gpu-fewer-than-needed", source=_RUNTIME),
    _gpu(r"CUDA_ERROR_NO_DEVICE", "gpu-none-visible", source=_RUNTIME),
    _gpu(r"CUDA_ERROR_INVALID_DEVICE", "env-local-rank-out-of-range gpu-fewer-than-needed", source=_RUNTIME),
    _gpu(r"cudaErrorDevicesUnavailable", "gpu-exclusive-mode gpu-prohibited-mode", source=_RUNTIME),
    _gpu(r"cudaErrorInsufficientDriver", "sw-driver-too-old", source=_RUNTIME),
    _gpu(r"cudaErrorSystemNotReady", "gpu-fabric-manager-down", source=_RUNTIME),
    _gpu(r"cudaErrorNoKernelImageForDevice", "sw-arch-unsupported", source=_RUNTIME),
    _gpu(r"cudaErrorECCUncorrectable", "gpu-ecc-uncorrected gpu-needs-reset", source=_RUNTIME),
    _gpu(r"CUDA driver initialization failed", "gpu-cuda-init-failed gpu-none-visible", source=_LAZY),
    _gpu(r"CUDA error: initialization error", "gpu-cuda-init-failed", weight=LIKELY, source=_RUNTIME),
    _gpu(
        r"ValueError: Cuda is not available",
        "gpu-none-visible sw-torch-cpu-build",
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py",
    ),
    _gpu(
        r"CUDA unavailable, invalid device",
        "gpu-none-visible sw-torch-cpu-build",
        source="https://github.com/ultralytics/yolov5",
    ),
    _gpu(
        r"Invalid CUDA 'device=\S+ requested",
        "gpu-fewer-than-needed gpu-none-visible",
        source="https://github.com/ultralytics/ultralytics",
    ),
    _gpu(
        r"You requested gpu: ",
        "gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus gpu-none-visible",
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/device_parser.py",
    ),
    _gpu(
        r"Could not find real path of /sys/class/pci_bus",
        source="https://github.com/NVIDIA/nccl/blob/master/src/graph/xml.cc",
        says="NCCL cannot find the GPU's PCI path in /sys: on WSL2, use a newer NCCL.",
    ),
    _gpu(
        r"Failed to CUDA (?:malloc|calloc|host alloc)",
        source="https://github.com/NVIDIA/nccl/blob/master/src/include/alloc.h",
        about="application",
        says=_MEMORY,
    ),
    _gpu(r"The NVIDIA probe routine failed for", "gpu-fell-off-bus gpu-nvml-init-failed", weight=LIKELY, source=_SMI),
    _gpu(
        r"region assigned to your NVIDIA device is invalid",
        "gpu-fell-off-bus gpu-nvml-init-failed",
        weight=LIKELY,
        source=_SMI,
    ),
    _gpu(r"RmInitAdapter failed", "gpu-fell-off-bus gpu-nvml-init-failed", source=_SMI),
    _gpu(r"No HIP GPUs are available", "gpu-none-visible", source=_LAZY),
    _gpu(
        r"no ROCm-capable device is detected",
        "gpu-none-visible",
        source="https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
    ),
    _gpu(
        r"Unexpected error from cudaGetDeviceCount",
        "gpu-cuda-init-failed gpu-none-visible",
        weight=SYMPTOM,
        source=_LAZY,
    ),
    _gpu(r"invalid device function", "sw-arch-unsupported", weight=LIKELY, source=_RUNTIME),
    _gpu(
        r"Free memory on device .*less than desired GPU memory utilization",
        "gpu-other-processes",
        source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py",
    ),
)
