"""Messages of NCCL, CUDA, the driver, RDMA and memory: the values in them decide which cause is named."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

QP = "NCCL WARN Call to ibv_modify_qp failed with"
DEVICE = "on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3,"
WRONG = "net-nccl-picks-loopback-or-docker"
MIXED = "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_2:1/RoCE ; OOB eth0:10.0.0.1<0>"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{QP} 22 Invalid argument, {DEVICE} local GID ::, remote GID ::ffff:10.0.0.2", "roce-gid-index-wrong"),
        (
            f"{QP} 110 Connection timed out, {DEVICE} local GID fe80::1, remote GID ::ffff:1.2.3.4",
            "roce-gid-index-wrong",
        ),
        (f"{QP} error Connection timed out", "roce-gid-subnet"),
        (f"{QP} error Network is unreachable", "roce-gid-index-wrong"),
        (f"{QP} error Invalid argument", "roce-gid-index-wrong"),
        (f"{QP} error No such device", "roce-port-in-other-namespace"),
        ("NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument", "roce-port-in-other-namespace"),
        (f"{MIXED}\n{QP} error Invalid argument", "ib-mixed-link-layer"),
        (f"NCCL_IB_GID_INDEX set by environment to 3.\n{QP} error No such device", "roce-gid-index-wrong"),
        ("ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory.", "ib-fork-or-memlock"),
        (
            "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with status=IBV_WC_RETRY_EXC_ERR(12)",
            "roce-pfc-ecn",
        ),
        ("NCCL WARN NET/IB : mlx5_0:1 async fatal event: port error", "ib-port-down"),
        ("connecting to address with family 0 is neither AF_INET(2) nor AF_INET6(10)", "sw-nccl-version-differs"),
        ("connecting to address with family 59936 is neither AF_INET(2) nor AF_INET6(10)", "net-nccl-ifname-no-match"),
        ("cuMemAlloc() of a 262144 bytes GPU buffer\nCouldn't allocate MR", "gdr-module-missing"),
        ("Couldn't allocate MR\nFailed to create MR", "ib-fork-or-memlock"),
        ("CQE ERROR wr_id=3 status=12(transport retry counter exceeded) vendor_err=0xa", "roce-pfc-ecn"),
        ("NVML: nvmlDeviceGetHandleByPciBusId() failed: Not Found", "k8s-pod-host-confusion"),
        ("[802] Call to cuInit results in UNKNOWN_CUDA_ERROR", "gpu-fabric-manager-down"),
        ("ROCk module is loaded\nUnable to open /dev/kfd read-write: Permission denied", "gpu-none-visible"),
        ("['python', 'main.py'] exits with return code = -7", "host-shm-too-small"),
        ("in _new_shared_cuda\nRuntimeError: CUDA error: invalid resource handle", "host-ptrace-pidns"),
        ("CUDA_VISIBLE_DEVICES=MIG-1,MIG-2\nDuplicate GPU detected : rank 1 and rank 0", "gpu-mig-with-nccl"),
        ("Bootstrap Root : mismatch in rank count from procs 8 : 16", "env-world-size-mismatch"),
        ("no device found matching eth9, verify NCCL_OOB_NET_IFNAME", "net-nccl-ifname-no-match"),
        ("Net : No interface found in the same subnet as remote address 10.1.0.1<0>", "net-subnet-mismatch"),
        ("socketFinalizeAccept from 10.0.0.1<9>: wrong type 3 != 2", "net-nccl-socket-port-scan"),
        ('Unrecognized prefix token "allgathr" when parsing "allgathr:ring"', "nccl-algo-proto-invalid"),
        ("MNNVL (cliqueSize 8) is available but not supported on this system. Check the IMEX", "gpu-mnnvl-imex"),
        ("ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister", "sw-nccl-shadowed"),
        ("cudaGetDeviceCount returned 802", "gpu-fabric-manager-down"),
        ("cuInit(0) returned 803", "sw-compat-libcuda"),
        ("failed call to cuInit: CUDA_ERROR_UNKNOWN", "gpu-cuda-init-failed"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.1", "sw-driver-too-old"),
        ("nvidia-container-cli: detection error: nvml error: unknown error", "gpu-nvml-init-failed"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, Ch 01 caused by previous Xid 149", "gpu-nvlink-errors"),
        (
            "NVRM: Xid (PCI:0000:dc:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset",
            "gpu-needs-reset",
        ),
        ("NVRM: API mismatch: the client has the version 535.1, but this kernel module", "gpu-nvml-init-failed"),
        ("Fatal CUDA Error at x.cu:450.\nReturn value 46 from 'cudaStreamCreate(&s)'.  Exiting.", "gpu-exclusive-mode"),
        ("NET : Using interface lo:127.0.0.1<0>\nCall to connect timeout : Connection refused", WRONG),
        ("[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&h, s", "gpu-mnnvl-imex"),
        ("libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of 6", "ib-no-device-in-container"),
        ("INFO: Will use Memory file system\nOSError: [Errno 28] No space left on device", "host-shm-too-small"),
        ("_lazy_init()\nRuntimeError: CUDA error: unknown error", "gpu-cuda-init-failed"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file", "gpu-none-visible"),
        ("RuntimeError: Cannot access accelerator device when none is available.", "gpu-none-visible"),
        (
            "The number of required GPUs exceeds the total number of available GPUs in the placement",
            "gpu-fewer-than-needed",
        ),
        ("nvrtc: error: invalid value for --gpu-architecture (-arch)", "sw-arch-unsupported"),
        ("No module named 'torch._C._distributed_c10d'; 'torch._C' is not a package", "torch-backend-missing"),
        ("NCCL_IB_HCA set to mlx5_9\nNET/IB : No device found.", "ib-hca-no-match"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-memory-low"),
        ("-bash: fork: retry: No child processes", "host-nproc-pids"),
    ],
)
def test_values_in_a_message_decide_between_causes(text: str, rule: str) -> None:
    assert found(text).causes[0].rule == rule


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (f"{QP} 110 Connection timed out, {DEVICE} local GID ::ffff:1.2.3.4, remote GID ::ffff:1.2.4.4", "network"),
        ("NET/IB : Got completion from peer 10.0.0.1<1> with status=5 opcode=0 len=0 vendor err 249", "network"),
        ("NET/IB : Got completion from peer 10.0.0.1<1> with error 4, opcode 0, len 0, vendor err 81", "network"),
        (
            "NET/IB : req 0/1 tag 0 peer 10.0.0.1<1> collective mismatch error, local size 8 remote size 4",
            "application",
        ),
        ("NET/Socket : peer 10.0.0.1<1> message truncated : receiving 8 bytes instead of 4", "application"),
        ("ncclInvalidUsage\nLast error:\nBroadcast : invalid root 9 (root should be in the 0..8 range)", "application"),
        (
            "DistBackendError: NCCL error in: x.cpp:1, internal error\nFailed to find reverse path from remNode 0/5",
            "GPU",
        ),
        ("ImportError: libtorch_python.so: undefined symbol: _ZN5torch4cuda4nccl6detail16throw_nccl_error", "start-up"),
        ("ImportError: libgomp.so.1: cannot allocate memory in static TLS block", "start-up"),
        ("train step 900\nRuntimeError: CUDA error: unknown error", "GPU"),
        ("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url", "application"),
        ("CUDA error: peer mapping resources exhausted", "GPU"),
        ("RuntimeError: Error building extension 'fused_adam'", "start-up"),
        ("RuntimeError: cuDNN version mismatch: PyTorch was compiled against 7102 but linked against 7605", "start-up"),
        ("RuntimeError: DataLoader worker (pid 4161) is killed by signal: Killed.", "process killed"),
        ("[47,0,0] Assertion `cur_target >= 0 && cur_target < n_classes` failed.", "application"),
        ("04:34:46 WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1) TIMEOUT", "application"),
        ("CQE error, wr_id=3, status=2 (local QP operation error), vendor_err=0x3", "network"),
        ("RuntimeError: CUDA error: invalid resource handle", "application"),
        (
            "KeyError: 'a'\nslurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***",
            "application",
        ),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***", "process killed"),
        ("transport.cpp:275: init failed for transport: IBGDA", "network"),
        ("connecting to address  with family 1 is neither AF_INET(2) nor AF_INET6(10)", "network"),
    ],
)
def test_what_no_rule_names_has_a_class_and_blames_no_rule(text: str, about: str) -> None:
    answered = found(text)
    assert (rules_of(answered), answered.about) == ([], about)


def test_a_flushed_request_is_a_consequence_of_the_time_out_before_it() -> None:
    flushed = "NET/IB : Got completion from peer n1<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)"
    timed_out = "NET/IB : Got completion from peer n1<1> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    assert found(f"{flushed}\n{timed_out}").telling.line == 2


IN_SCRIPT = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: bad sample\n'
)
IN_LAUNCHER = (
    'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in <module>\n'
    '  File "torch/distributed/launcher/api.py", line 134, in __call__\n{}\n'
)


def test_only_the_traceback_of_an_error_itself_makes_it_one_of_the_start_up() -> None:
    failed = IN_LAUNCHER.format("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert found(IN_SCRIPT + failed).about == "application"
    assert found(failed + IN_SCRIPT).telling.text == "ValueError: bad sample"
    assert found(failed + IN_SCRIPT).about == "application"
    assert found(IN_LAUNCHER.format("ValueError: bad options")).about == "start-up"


@pytest.mark.parametrize(
    "warning",
    [
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "using GPU 0 to perform barrier as devices used by this process are currently unknown.",
        "Environment variable NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead",
        "[c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0",
    ],
)
def test_what_healthy_jobs_write_too_does_not_hide_an_error(warning: str) -> None:
    assert (rules_of(found(warning + "\n" + IN_SCRIPT)), found(warning + "\n" + IN_SCRIPT).about) == ([], "application")


def test_the_words_of_an_errno_alone_name_no_rule() -> None:
    for words in ("No such file or directory", "No such device", "Resource temporarily unavailable"):
        assert not rules_of(found(f"open /opt/x: {words}\n"))
