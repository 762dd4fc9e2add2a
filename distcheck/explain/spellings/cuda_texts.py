"""CUDA's rarer errors by their text, whoever writes it: torch, NCCL, Triton, nccl-tests, ONNX Runtime, CuPy."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, LIKELY, SYMPTOM, About, Spelling, told

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
_MEMORY = "The GPU ran out of memory. The batch, the sequence length or the model is too large for it."
_KERNEL = "A CUDA kernel failed: an error of the program or a defective GPU. Look for Xids in the kernel log."
_ACCESS = "A CUDA kernel of the program accessed invalid memory. Repeat with CUDA_LAUNCH_BLOCKING=1 to see which."
_UNNAMED = "A CUDA call failed for a reason that the driver does not name. Look for Xids in the kernel log."


def _line(text: str, rules: str = "", *, weight: int = LIKELY, says: str = "") -> Spelling:
    return _text(_CALL + text, rules, about="GPU", weight=weight, says=says)


def _bug(text: str, says: str) -> Spelling:
    return _text(_CALL + text, about="application", weight=LIKELY, says=says)


def _names(
    runtime: str, driver: str, rules: str = "", *, about: About = "GPU", weight: int = LIKELY, says: str = ""
) -> tuple[Spelling, ...]:
    """Return the names of an error in both interfaces, which programs write without the text."""
    return tuple(
        _text(rf"\b{name}\b", rules, about=about, weight=weight, says=says)
        for name in (runtime and f"cudaError{runtime}", driver and f"CUDA_ERROR_{driver}")
        if name
    )


def _numbered(numbers: str, *, about: About = "application", says: str) -> Spelling:
    """Return the numbers of an error, those before CUDA 10.1 included."""
    pattern = rf"CUDA (?:runtime |driver )?(?:error|failure)\W{{0,3}}(?:code |number )?\W{{0,2}}(?:{numbers})\b"
    return _text(pattern, about=about, weight=SYMPTOM, says=says)


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
    _line(r"Invalid access of peer GPU memory over nvlink", "gpu-nvlink-errors gpu-xid-recent"),
    _line(r"exclusive-thread device already in use", "gpu-exclusive-mode"),
    _bug(r"terminate a thread-local capture sequence", _GRAPH),
    *_names("MemoryAllocation", "OUT_OF_MEMORY", about="application", weight=SYMPTOM, says=_MEMORY),
    *_names("PeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED", "collective-transport-fails perf-p2p-not-nvlink"),
    *_names("InvalidDeviceFunction", "", "sw-arch-unsupported"),
    *_names("InvalidKernelImage", "INVALID_IMAGE", "sw-arch-unsupported"),
    *_names("InvalidPtx", "", "sw-arch-unsupported sw-driver-too-old"),
    *_names("OperatingSystem", "OPERATING_SYSTEM", "gpu-cuda-init-failed"),
    *_names("Contained", "CONTAINED", "gpu-nvlink-errors gpu-xid-recent"),
    *_names("DeviceAlreadyInUse", "CONTEXT_ALREADY_IN_USE", "gpu-exclusive-mode"),
    *_names("DeviceNotLicensed", "DEVICE_NOT_LICENSED", says=_LICENSE),
    *_names("JitCompilerNotFound", "JIT_COMPILER_NOT_FOUND", says=_JIT),
    *_names("Unknown", "", says=_UNNAMED),
    *_names("LaunchFailure", "LAUNCH_FAILED", weight=SYMPTOM, says=_KERNEL),
    *_names("HardwareStackError", "HARDWARE_STACK_ERROR", says=_KERNEL),
    *_names("IllegalInstruction", "ILLEGAL_INSTRUCTION", says=_KERNEL),
    *_names("LaunchTimeout", "LAUNCH_TIMEOUT", says=_KERNEL),
    *_names("InvalidPc", "INVALID_PC", says=_KERNEL),
    *_names("TooManyPeers", "TOO_MANY_PEERS", says="A GPU has too many peers: use fewer GPUs per process."),
    *_names("IllegalAddress", "ILLEGAL_ADDRESS", about="application", says=_ACCESS),
    *_names("MisalignedAddress", "MISALIGNED_ADDRESS", about="application", says=_ACCESS),
    *_names("Assert", "ASSERT", about="application", says=_ACCESS),
    *_names("LaunchOutOfResources", "LAUNCH_OUT_OF_RESOURCES", about="application", says=_LAUNCH),
    *_names("InvalidConfiguration", "", about="application", says=_LAUNCH),
    *_names("CooperativeLaunchTooLarge", "COOPERATIVE_LAUNCH_TOO_LARGE", about="application", says=_LAUNCH),
    *_names("StreamCaptureUnsupported", "STREAM_CAPTURE_UNSUPPORTED", about="application", says=_GRAPH),
    *_names("StreamCaptureInvalidated", "STREAM_CAPTURE_INVALIDATED", about="application", says=_GRAPH),
    *(  # NVML's names: nvml.h, pynvml
        _text(rf"\bNVML_?ERROR_{names}\b", rules, about="GPU", weight=LIKELY)
        for names, rules in (
            (
                r"(?:DRIVER_?NOT_?LOADED|LIB_?RM_?VERSION_?MISMATCH|LIBRARY_?NOT_?FOUND|NO_?PERMISSION|OPERATING_?SYSTEM)",
                "gpu-nvml-init-failed gpu-none-visible",
            ),
            (r"UNKNOWN", "gpu-nvml-init-failed gpu-fell-off-bus"),
            (r"(?:GPU_?IS_?LOST|GPU_?NOT_?FOUND)", "gpu-fell-off-bus"),
            (r"RESET_?REQUIRED", "gpu-needs-reset"),
        )
    ),
    _numbered("2", says=_MEMORY),
    _numbered("700|77", says=_ACCESS),
    _numbered("710|59", says=_ACCESS),
    _numbered("719", about="GPU", says=_KERNEL),
)
"""They come after the tables that know more of the same text."""
