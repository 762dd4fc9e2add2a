"""Memory of a GPU that another process cannot open: CUDA IPC and HIP IPC, as MPI, UCX, torch and NCCL word it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, LIKELY, told

_CRAY = "https://github.com/BLAST-WarpX/warpx/issues/6382"
_OPEN_MPI = "https://github.com/open-mpi/ompi/blob/v4.1.x/opal/mca/common/cuda/help-mpi-common-cuda.txt"
_UCX = "https://github.com/openucx/ucx/blob/master/src/uct/cuda/cuda_ipc/cuda_ipc_cache.c"
_MPICH = "https://github.com/pmodels/mpich/tree/main/src/mpid/ch4/shm/ipc/gpu"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/torch/multiprocessing/reductions.py"
_P2P = "https://github.com/NVIDIA/nccl/blob/master/src/transport/p2p.cc"
_HIP = "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/hip_runtime_api/modules/device_management.html"
_gpu = partial(told, about="GPU", weight=LIKELY)
_BOUND = "slurm-gpu-bind-no-p2p host-ptrace-pidns"
"""Between processes that a scheduler started: each mostly sees its own GPU only."""
_CONTAINERS = "host-ptrace-pidns collective-transport-fails slurm-gpu-bind-no-p2p"
_NOT_OPENED = (
    "A process could not open GPU memory of another one. Repeat with NCCL_CUMEM_ENABLE=0, and with NCCL_P2P_DISABLE=1,"
    " to see what it depends on."
)
_REFUSED = r"(?:invalid (?:resource handle|device context)|mapping of buffer object failed|resource already mapped)"

SPELLINGS = (
    # torch's symmetric memory needs a GPU of its own for each rank: CUDASymmetricMemory.cu
    _gpu(
        r"detected allocations from overlapping devices from different ranks",
        "gpu-duplicate env-local-rank-unset",
        weight=CAUSE,
        source="https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d/symm_mem",
    ),
    _gpu(
        r"Is gdrdrv driver installed and loaded",
        source="https://github.com/NVIDIA/gdrcopy/blob/master/src/gdrapi.c",
        says="GDRCopy's kernel module gdrdrv is not loaded on the node.",
    ),
    # Cray MPICH's GPU transport layer, of CUDA and of ROCm
    _gpu(r"GTL[ _]DEBUG: \[?\d+\]?\)? ?(?:cuIpc|hipIpc|hsa_amd_ipc)\w+: ", _BOUND, source=_CRAY),
    _gpu(r"call to cu(?:da)?Ipc(?:Open|Get)MemHandle failed", _BOUND, source=_OPEN_MPI),
    _gpu(r"cuIpc(?:Open|Get)MemHandle return value:? *[1-9]", _BOUND, source=_OPEN_MPI),
    _gpu(r"cuIpcOpenMemHandle\([^()]*\)\S* failed", _BOUND, source=_UCX),
    _gpu(r"gpu_ipc_handle_map failed", _BOUND, source=_MPICH),
    _gpu(r"hipIpc(?:Open|Get)MemHandle\b.{0,60}(?:fail|error|invalid)", _CONTAINERS, source=_HIP),
    _gpu(rf"transport/p2p\.cc.*Cuda failure.*{_REFUSED}", _CONTAINERS, source=_P2P),
    _gpu(r"transport/p2p\.cc.*Cuda failure.*invalid argument", source=_P2P, says=_NOT_OPENED),
    _gpu(
        r"CUDA error: (?:invalid argument|mapping of buffer object failed|invalid device context)",
        _CONTAINERS,
        source=_TORCH,
        trace=r"_new_shared_cuda|rebuild_cuda_tensor|_share_cuda_|open_ipc_handle|cudaIpcOpenMemHandle",
    ),
)
