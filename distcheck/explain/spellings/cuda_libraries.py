"""CUDA's rarer errors by name and text, its libraries, containers and tools, and the fabric manager."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_DRIVER = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html"
_CUBLAS = "https://docs.nvidia.com/cuda/cublas/#cublasstatus-t"
_CUDNN = "https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html"
_CONTAINER = "https://github.com/NVIDIA/libnvidia-container"
_KUBELET = "https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/devicemanager/manager.go"
_FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_EXTENSION = "https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py"
_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/xla_bridge.py"
_NUMPY = "https://numpy.org/devdocs/user/troubleshooting-importerror.html"
_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/main/src/transformers/utils/import_utils.py"
_TORCHVISION = "https://github.com/pytorch/vision/blob/main/torchvision/extension.py"
_BITSANDBYTES = "https://github.com/bitsandbytes-foundation/bitsandbytes"
_HIP = "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html"
_gpu = partial(told, about="GPU", source=_RUNTIME)
_start = partial(told, about="start-up")
_app = partial(told, about="application", source=_RUNTIME)
_KERNEL = "A CUDA kernel of the program failed. Repeat with CUDA_LAUNCH_BLOCKING=1; if another GPU does not fail, look for Xids."
_EXTENSION_FAILED = "A CUDA extension could not be built. Check CUDA_HOME, the compiler and the CUDA version of torch."
_MIXED = "Libraries of different CUDA or torch versions are mixed. Reinstall them for one version."
_CUDNN_BROKEN = "cuDNN did not start: its version does not fit, or the GPU's memory is full."

_NUMBERS = (
    ("10|101", "env-local-rank-out-of-range gpu-fewer-than-needed"),
    ("35|36|222", "sw-driver-too-old"),
    ("38|100", "gpu-none-visible gpu-cuda-init-failed"),
    ("46", "gpu-exclusive-mode gpu-prohibited-mode"),
    ("48|209", "sw-arch-unsupported"),
    ("39|214", "gpu-ecc-uncorrected gpu-needs-reset"),
    ("220", "gpu-nvlink-errors gpu-nvlink-down"),
    ("802", "gpu-fabric-manager-down"),
    ("803|804|34", "sw-compat-libcuda"),
    ("805|806|807|808|809|810", "gpu-mps-active"),
    ("999|30|304", "gpu-cuda-init-failed"),
)
"""Numbers of cudaError_t and CUresult, those before CUDA 10.1 (10, 30, 35, 38, 39, 46, 48) included."""
_FORMS = (
    r"CUDA (?:runtime |driver )?(?:error|failure)\W{{0,3}}(?:code |number )?\W{{0,2}}(?:{0})\b",
    r"Return value (?:{0}) from '?cu",
    r"cudaError_t (?:{0})\b",
    r"cudaGetDeviceCount\b\D{{0,40}}\b(?:{0})\b",
    r"cudaSetDevice\b\D{{0,40}}\b(?:{0})\b",
    r"\bcuInit\b(?:\(0\))?\D{{0,40}}\b(?:{0})\b",
    r"\[(?:{0})\] Call to cu\w+ results in",
)
"""How programs that write no name write a number."""

SPELLINGS = (
    *(
        _gpu(form.format(numbers), rules, weight=LIKELY, source=_DRIVER)
        for numbers, rules in _NUMBERS
        for form in _FORMS
    ),
    # names of the runtime and of the driver
    _gpu(r"CUDA_ERROR_UNKNOWN", "gpu-cuda-init-failed", source=_DRIVER),
    _gpu(r"CUDA_ERROR_NOT_INITIALIZED", "gpu-cuda-init-failed", weight=LIKELY, source=_DRIVER),
    _gpu(r"CUDA_ERROR_(?:INVALID_PTX|UNSUPPORTED_PTX_VERSION)", "sw-driver-too-old", source=_DRIVER),
    _gpu(r"CUDA_ERROR_NO_BINARY_FOR_GPU", "sw-arch-unsupported", source=_DRIVER),
    _gpu(r"CUDA_ERROR_DEVICE_UNAVAILABLE", "gpu-exclusive-mode gpu-prohibited-mode", source=_DRIVER),
    _gpu(r"CUDA_ERROR_ECC_UNCORRECTABLE", "gpu-ecc-uncorrected gpu-needs-reset", source=_DRIVER),
    _gpu(r"CUDA_ERROR_NVLINK_UNCORRECTABLE", "gpu-nvlink-errors gpu-nvlink-down", source=_DRIVER),
    _gpu(r"CUDA_ERROR_STUB_LIBRARY", "sw-compat-libcuda", source=_DRIVER),
    _gpu(r"CUDA_ERROR_NOT_PERMITTED", "gpu-mnnvl-imex", weight=LIKELY, source=_DRIVER),
    _gpu(r"operation not permitted.*cuMem(?:Create|Export|Import)", "gpu-mnnvl-imex", source=_DRIVER),
    _gpu(r"cuMem(?:Create|Export\w+|Import\w+).*operation not permitted", "gpu-mnnvl-imex", source=_DRIVER),
    _gpu(r"CUDA_ERROR_MPS_\w+", "gpu-mps-active", source=_DRIVER),
    _gpu(r"cudaErrorMps\w+", "gpu-mps-active"),
    _gpu(r"MPS client failed to connect", "gpu-mps-active"),
    _gpu(r"MPS server is not ready", "gpu-mps-active"),
    _gpu(r"cudaErrorNoDevice", "gpu-none-visible gpu-cuda-init-failed"),
    _gpu(r"cudaErrorInitializationError", "gpu-cuda-init-failed"),
    _gpu(
        r"cudaError(?:SystemDriverMismatch|CompatNotSupportedOnDevice|StubLibrary)",
        "sw-compat-libcuda",
    ),
    _gpu(r"cudaError(?:UnsupportedPtxVersion|CallRequiresNewerDriver)", "sw-driver-too-old"),
    _gpu(r"cudaErrorNvlinkUncorrectable", "gpu-nvlink-errors gpu-nvlink-down"),
    _gpu(r"an illegal instruction was encountered", weight=LIKELY, says=_KERNEL),
    _gpu(r"hardware stack error", weight=LIKELY, says=_KERNEL),
    _gpu(r"invalid program counter", weight=LIKELY, says=_KERNEL),
    _gpu(r"the launch timed out and was terminated", weight=LIKELY, says=_KERNEL),
    _gpu(
        r"peer mapping resources exhausted", weight=LIKELY, says="A GPU has too many peers: use fewer GPUs per process."
    ),
    _gpu(r"driver shutting down", weight=CONSEQUENCE, says="A process was ending when this call failed."),
    _start(
        r"OCI runtime create failed",
        weight=SYMPTOM,
        source="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
        says="The container did not start. The rest of the message tells which part of its set-up failed.",
    ),
    _gpu(
        r"hip_?Error_?InvalidDevice", "env-local-rank-out-of-range gpu-fewer-than-needed gpu-none-visible", source=_HIP
    ),
    _gpu(r"hip_?Error_?NoDevice", "gpu-none-visible", source=_HIP),
    _gpu(r"hip_?Error_?OutOfMemory", about="application", source=_HIP, says="The GPU ran out of memory."),
    _gpu(r"hip_?Error_?NoBinaryForGpu", "sw-arch-unsupported", source=_HIP),
    _gpu(r"Unable to find code object for all current devices", "sw-arch-unsupported", source=_HIP),
    # libraries
    _gpu(r"libcuda\.so\.\d: cannot open shared object file", "gpu-none-visible gpu-cuda-init-failed", weight=LIKELY),
    _gpu(r"libcuda\.so\.\d: file too short", "gpu-cuda-init-failed"),
    _gpu(
        r"libnvidia-ml\.so\.\d: cannot open shared object file", "gpu-nvml-init-failed gpu-none-visible", weight=LIKELY
    ),
    _gpu(r"C(?:UBLAS|UDNN|USOLVER)_STATUS_(?:NOT_SUPPORTED_)?ARCH_MISMATCH", "sw-arch-unsupported", source=_CUBLAS),
    _app(
        r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INVALID_VALUE|INTERNAL_ERROR|NOT_SUPPORTED|MAPPING_ERROR)",
        weight=SYMPTOM,
        source=_CUBLAS,
        says=_KERNEL,
    ),
    _app(
        r"CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|ALLOC_FAILED|EXECUTION_FAILED\w*|MAPPING_ERROR|BAD_PARAM)",
        weight=SYMPTOM,
        source=_CUDNN,
        says=_CUDNN_BROKEN,
    ),
    _start(r"CUDNN_STATUS_\w*VERSION_MISMATCH", source=_CUDNN, says=_MIXED),
    _start(r"nvJitLinkError", source="https://docs.nvidia.com/cuda/nvjitlink/index.html", weight=LIKELY, says=_MIXED),
    _start(r"cuDNN version (?:incompatibility|mismatch)", source=_CUDNN, says=_MIXED),
    _start(r"was compiled against \S.{0,40} but (?:linked|running|found|runtime)", source=_CUDNN, says=_MIXED),
    _start(r"but source was compiled with", source=_CUDNN, says=_MIXED),
    _start(r"was built against version", source=_JAX, weight=LIKELY, says=_MIXED),
    _start(r"compiled using NumPy 1\.x cannot be run in", source=_NUMPY, weight=LIKELY, says=_MIXED),
    _start(r"size changed, may indicate binary incompatibility", source=_NUMPY, says=_MIXED),
    _start(r"operator torchvision::nms does not exist", source=_TORCHVISION, says=_MIXED),
    _start(r"Failed to import \S+ because of the following error", source=_TRANSFORMERS, weight=LIKELY, says=_MIXED),
    _start(
        r"mpiSize == tp",
        source="https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/runtime/worldConfig.cpp",
        says="Fewer or more MPI ranks were started than the model's parallel sizes need.",
    ),
    _gpu(
        r"CUDA backend failed to initialize",
        "gpu-cuda-init-failed",
        weight=SYMPTOM,
        source=_JAX,
        unless=r"built against",
    ),
    _start(r"Could not load library libcud\w+", source=_CUDNN, weight=LIKELY, says=_MIXED),
    _start(r"Unable to load any of \{?libcudnn", source=_CUDNN, weight=LIKELY, says=_MIXED),
    _start(
        r"detected CUDA version .* mismatches the version that was used to compile",
        source=_EXTENSION,
        says=_EXTENSION_FAILED,
    ),
    _start(r"CUDA_HOME environment variable is not set", source=_EXTENSION, weight=LIKELY, says=_EXTENSION_FAILED),
    _start(r"CUDA Setup failed despite (?:GPU|CUDA) being available", source=_BITSANDBYTES, weight=LIKELY, says=_MIXED),
    _start(r"CUDA_HOME does not exist", source=_EXTENSION, weight=LIKELY, says=_EXTENSION_FAILED),
    _start(
        r"CUDAMismatchException",
        source="https://github.com/deepspeedai/DeepSpeed/blob/master/op_builder/builder.py",
        says=_EXTENSION_FAILED,
    ),
    _start(r"Error building extension '", source=_EXTENSION, weight=LIKELY, says=_EXTENSION_FAILED),
    _start(r"Ninja is required to load C\+\+ extensions", source=_EXTENSION, says=_EXTENSION_FAILED),
    _start(r"compiled with different CUDA(?: major)? versions", source=_TORCHVISION, says=_MIXED),
    _start(
        r"Could not run 'torchvision::nms' with arguments from the 'CUDA' backend", source=_TORCHVISION, says=_MIXED
    ),
    # containers, Kubernetes
    _gpu(
        r"nvidia-container-cli: requirement error: unsatisfied condition: (?:cuda|driver)",
        "sw-driver-too-old",
        source=_CONTAINER,
    ),
    _gpu(r"nvidia-container-cli: detection error: nvml error", "gpu-nvml-init-failed", source=_CONTAINER),
    _gpu(
        r"nvidia-container-cli: \w+ error: (?:driver|nvml) ", "gpu-nvml-init-failed", weight=LIKELY, source=_CONTAINER
    ),
    _gpu(r"unresolvable CDI devices", "gpu-none-visible", source="https://github.com/NVIDIA/nvidia-container-toolkit"),
    _gpu(r"requested number of devices unavailable for nvidia\.com/gpu", "gpu-fewer-than-needed", source=_KUBELET),
    # fabric manager, NVSwitch
    _gpu(r"request to query NVSwitch device information .* failed", "gpu-fabric-manager-down", source=_FABRIC),
    _gpu(
        r"fabric manager NVIDIA GPU driver interface version .* don't match", "gpu-fabric-manager-down", source=_FABRIC
    ),
    _gpu(r"nvidia-fabricmanager\.service: (?:Failed|Main process exited)", "gpu-fabric-manager-down", source=_FABRIC),
    _gpu(r"failed to (?:initialize|start) .{0,30}fabric ?manager", "gpu-fabric-manager-down", source=_FABRIC),
    _gpu(
        r"detected NVSwitch (?:fatal|non-fatal) error",
        "gpu-nvlink-errors gpu-fabric-manager-down",
        weight=LIKELY,
        source=_FABRIC,
    ),
)
