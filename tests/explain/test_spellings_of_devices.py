"""GPUs that a process does not have or cannot open, AMD's GPUs, full disks, and warnings of NCCL that are no cause."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

WARN = "node1:12:34 [0] init.cc:1085 NCCL WARN "
OOM = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free."
OWN = "Including non-PyTorch memory, this process has"
ACS = "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<5> with status=4 opcode=0 len=0 vendor err 81\n"
OFI = "NCCL WARN NET/OFI "
TENSORFLOW = "Cannot assign a device for operation w: Operation was explicitly assigned to /device:GPU:1 but available"
TRACE = "Traceback (most recent call last):\n"
REBUILD = f"{TRACE}  torch/multiprocessing/reductions.py, line 1, in rebuild_cuda_tensor\n"
WRITER = "RuntimeError: [enforce fail at inline_container.cc:471] . "
GTL = "(GTL DEBUG: 1) cuIpcOpenMemHandle: invalid argument, CUDA_ERROR_INVALID_VALUE, line no 360"
HSA = "GTL_DEBUG: [0] hsa_amd_ipc_memory_attach: HSA_STATUS_ERROR_INVALID_ARGUMENT: One of the actual arguments"
LOCK = f"{TRACE}    sl = self._semlock = _multiprocessing.SemLock(kind, value)\nOSError: "


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("'visible_device_list' listed an invalid GPU id '6' but visible device count is 1", "out-of-range"),
        ("InvalidArgumentError: Device id must be less than GPU count, but received id is: 3.", "out-of-range"),
        (f"{TENSORFLOW} devices are [ /job:w/device:CPU:0, /job:w/device:GPU:0 ]", "out-of-range"),
        (
            f"{TRACE}    visible(gpus[hvd.local_rank()], 'GPU')\nIndexError: list index out of range",
            "out-of-range",
        ),
        (f"{TENSORFLOW} devices are [ /job:w/device:CPU:0, /job:w/device:XLA_CPU:0 ]", "gpu-none-visible"),
        ("docker: Error response from daemon: unknown or invalid runtime name: nvidia.", "gpu-none-visible"),
        ("RuntimeError: Unknown backend: no platforms that are instances of gpu are present.", "gpu-none-visible"),
        ("Invalid number of GPUs: 8 requested but only 4 were found.", "gpu-fewer-than-needed"),
        ("ValueError: tensor parallel size (4) is larger than the number of available GPUs (2)", "fewer-than-needed"),
        ("ValueError: Requested 4 GPUs, but only 2 are available", "gpu-fewer-than-needed"),
        (GTL, "slurm-gpu-bind-no-p2p"),
        (HSA, "slurm-gpu-bind-no-p2p"),
        ("The call to cuIpcOpenMemHandle failed. This is an unrecoverable error", "slurm-gpu-bind-no-p2p"),
        (f"{REBUILD}RuntimeError: CUDA error: invalid argument", "host-ptrace-pidns"),
        (f"{WRITER}PytorchStreamWriter failed writing file data/228: file write failed", "storage-full"),
        (f"{WRITER}unexpected pos 3264 vs 3154", "storage-full"),
        ("IoError(Os { code: 122, kind: FilesystemQuotaExceeded })", "storage-full"),
        ("FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']", "host-disk-full"),
        ("RuntimeError: flock: Transport endpoint is not connected", "net-file-rendezvous-nfs"),
        ("  what():  flock: Bad file descriptor", "net-file-rendezvous-nfs"),
        (f"{LOCK}[Errno 38] Function not implemented", "host-shm-not-writable"),
        ("PermissionError: [Errno 13] Permission denied: '/dev/shm/sem.x'", "host-shm-not-writable"),
        ("  what():  Resource temporarily unavailable", "host-nproc-pids"),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED DUE TO MEMORY LIMIT ***", "host-memory-low"),
        ("cudaHostAlloc failed: out of memory, 4096 bytes", "host-memory-low"),
        (f"{WARN}nvmlDeviceGetCount_v2() failed: Unknown Error", "gpu-nvml-init-failed"),
        (f"{WARN}Retrieve cuGetProcAddress version 11030 failed with 500", "sw-driver-too-old"),
        (f"{OFI}OFI fi_getinfo() call failed: No data available", "nccl-efa-provider-missing"),
        (f"{OFI}aws-ofi-nccl initialization failed", "nccl-efa-provider-missing"),
        ("UCX  ERROR open(file_name=/proc/123/fd/4 flags=0x0) failed: No such file", "host-ptrace-pidns"),
        ("modprobe: FATAL: Module nv_peer_mem not found in directory /lib/modules", "gdr-module-missing"),
        ("libibverbs: open /dev/infiniband/uverbs0: Permission denied", "ib-device-not-openable"),
        ("RuntimeError: cudaErrorPeerAccessUnsupported", "collective-transport-fails"),
        ("kernel: nfs: server files not responding, still trying", "storage-hangs"),
        ("AttributeError: module 'torch.distributed' has no attribute 'ReduceOp'", "torch-backend-missing"),
        ("Device id must be less than GPU count, but received id is: 0. GPU count is: 0.", "gpu-none-visible"),
        (f"{OOM} Process 7 has 60.00 GiB memory in use. {OWN} 15.00 GiB memory in use.", "gpu-other-processes"),
        ("node1: Test CUDA failure common.cu:892 'invalid device ordinal'", "gpu-fewer-than-needed"),
        (
            "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.\nFailed to find ncclNetPlugin symbol (>= v5).",
            "sw-plugin-abi",
        ),
        ("ERROR: The NVIDIA Driver is present, but CUDA failed to initialize.", "gpu-cuda-init-failed"),
        (
            "This container was built for NVIDIA Driver Release 535.86 or later: compatibility mode is UNAVAILABLE.",
            "sw-driver-too-old",
        ),
        ("NVIDIA: could not open the device file /dev/nvidia0 (Operation not permitted).", "gpu-none-visible"),
        ("slurmd: error: Munge decode failed: Expired credential", "host-clock-skew"),
        ("E0101 [Handshake] Failed to modify QP to RTR, check mtu, gid: Connection timed out", "roce-gid-index-wrong"),
        ("rendezvous: detected allocations from overlapping devices from different ranks.", "gpu-duplicate"),
        ("FileExistsError: [Errno 17] File exists: '/psm_c1f5d3e2'", "host-shm-stale-files"),
        (
            f"{ACS}NCCL INFO HINT: this error occurs when ACS is enabled which would break GPU Direct RDMA\n",
            "gdr-acs-slow",
        ),
        ("NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:10.0.0.1<0>", "net-nccl-picks-loopback-or-docker"),
    ],
)
def test_a_message_about_a_device_a_disk_or_a_limit_names_its_rule(text: str, rule: str) -> None:
    assert rule in found(text).causes[0].rule


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("RuntimeError: HIP error: the operation cannot be performed in the present state", "GPU"),
        ("RuntimeError: CUDA driver error: invalid argument", "GPU"),
        ("RuntimeError: CUDA error: invalid argument", "GPU"),
        ("transport/p2p.cc:275 NCCL WARN Cuda failure 'invalid argument'", "GPU"),
        (f"{OFI}Failed to allocate eager_copy_req", "network"),
        (f"{OFI}Request 0x7f completed with error. RC: 103. Error: 15 (unreachable remote)", "network"),
        ("UCX  ERROR Remote access error on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)", "network"),
        ("Error: CUDA error 700 at kernel.cu:3", "application"),
        ("RuntimeError: CUDA_ERROR_LAUNCH_FAILED", "GPU"),
        ("RuntimeError: cudaErrorInvalidPitchValue", "GPU"),
        (f"{OOM} Process 7 has 520.00 MiB memory in use. {OWN} 75.00 GiB memory in use.", "application"),
        (f"{OOM} Process 7 has 40.00 GiB memory in use. {OWN} 38.00 GiB memory in use.", "application"),
        ("ValueError: invalid literal for int() with base 10: 'MIG-8f4c'", "start-up"),
        ("Failed, NCCL error x.cpp:183 'unknown result code'", "start-up"),
        ("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", "network"),
        ("FileExistsError: [Errno 17] File exists: '/data/out'", "application"),
        (ACS, "network"),
        ("frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<int>) + 0x1d2", "application"),
        ("in pin_memory(data)\nRuntimeError: CUDA error: out of memory", "application"),
        ("CUDA out of memory. Tried to allocate 2 GiB\nRuntimeError: CUDA error: out of memory", "application"),
        (f"{TRACE}  x = losses[rank]\nIndexError: list index out of range", "application"),
        ("ValueError: the number of GPUs must be larger than the number of experts", "application"),
        ("OSError: [Errno 38] Function not implemented", "application"),
    ],
)
def test_a_message_without_a_rule_has_its_class(text: str, about: str) -> None:
    answered = found(text)
    assert (rules_of(answered), answered.about) == ([], about)


@pytest.mark.parametrize(
    "line",
    [
        f"{WARN}User asked for a minimum of 64 channels, limiting to 32",
        f"{WARN}CollNet is not supported or fails to initialize, ignoring NCCL_ALGO=COLLNET",
        f"{WARN}dlvsym failed on ibv_reg_dmabuf_mr - /lib/libibverbs.so.1: undefined symbol: ibv_reg_dmabuf_mr",
        f"{WARN}NET/IB : mlx5_0:1 Got non-fatal async event: client reregistration(17)",
        "node1:12:34 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>",
        "node1:12:34 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.4<0>",
        "node1:12:34 [0] NCCL INFO Could not open XML topology file /var/run/nvidia-topologyd/x.xml : No such",
        f"{WARN}unlink shared memory /dev/shm/nccl-x failed, error: No such file",
        "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so': cannot open shared object file",
        "amdgpu 0000:01:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "# Out of bounds values : 0 OK",
        "amdgpu.ids: No such file or directory",
    ],
)
def test_a_warning_after_which_nccl_goes_on_is_no_cause(line: str) -> None:
    answered = found(line)
    assert (rules_of(answered), answered.telling) == ([], None)
    assert found(f"{line}\nKeyError: 'weights'\n").about == "application"


def test_a_host_s_own_interface_is_a_cause_only_between_nodes() -> None:
    line = "node1:12:34 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    assert not rules_of(found(f"{line}node1:12:34 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1\n"))
    several = found(f"{line}node1:12:34 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2\n")
    assert several.causes[0].rule == "net-nccl-picks-loopback-or-docker"


def test_a_connection_that_nccl_retries_is_only_a_hint() -> None:
    line = "NCCL INFO socketPollConnect: connect to 10.0.0.2<4567> returned Connection refused, retrying (1/34) after\n"
    assert found(line).causes[0].rule == "net-nccl-auto-wrong-iface"
    assert not rules_of(found(f"{line}KeyError: 'weights'\n"))
    lost = (
        "NCCL WARN socketPollConnect: connect to 10.0.0.2<4567> returned Connection refused, exceeded error retry count"
    )
    assert found(f"{line}{lost}\nKeyError: 'weights'\n").causes[0].rule == "net-nccl-auto-wrong-iface"


def test_multicast_that_nccl_does_without_is_only_a_hint() -> None:
    failed = "NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size 3 : CUDA error 401 'x'"
    line = f"{failed}. Proceeding without NVLS support.\n"
    assert not rules_of(found(f"{line}KeyError: 'weights'\n"))
    assert found(failed).causes[0].rule == "gpu-nvls-multicast-broken"


@pytest.mark.parametrize("mark", ["", "        ~~~~^^^^^^^^^^^^\n"])
def test_the_code_of_a_traceback_is_read_with_and_without_the_marks_of_newer_pythons(mark):
    log = f"{TRACE}    gpu = gpus[args.local_rank]\n{mark}IndexError: list index out of range"
    causes = [cause.rule for cause in found(log).causes]
    assert causes == ["env-local-rank-out-of-range", "gpu-fewer-than-needed"]
