"""What NCCL, CUDA and the driver write of devices: the lines around decide its meaning, and much is no cause."""

from __future__ import annotations

import pytest
from explain.answered import found, rules, rules_of

WARN = "node1:12:34 [0] init.cc:1085 NCCL WARN "
TRACE = "Traceback (most recent call last):\n"


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


@pytest.mark.parametrize("mark", ["", "        ~~~~^^^^^^^^^^^^\n"])
def test_the_code_of_a_traceback_is_read_with_and_without_the_marks_of_newer_pythons(mark):
    log = f"{TRACE}    gpu = gpus[args.local_rank]\n{mark}IndexError: list index out of range"
    causes = [cause.rule for cause in found(log).causes]
    assert causes == ["env-local-rank-out-of-range", "gpu-fewer-than-needed"]


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


def test_memory_that_no_adapter_takes_is_locked_memory():
    assert rules("Couldn't allocate MR\nFailed to create MR\n")[0] == "ib-fork-or-memlock"


FORMS = (
    "RuntimeError: CUDA error: {}",
    "node1:12:34 [0] misc/strongstream.cc:60 NCCL WARN Cuda failure 800 '{}'",
    "node1: Test CUDA failure common.cu:892 '{}'",
    "RuntimeError: Triton Error [CUDA]: {}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("text", "rules", "about"),
    [
        ("initialization error", ("gpu-cuda-init-failed",), "GPU"),
        ("API call is not supported in the installed CUDA driver", ("sw-driver-too-old", "sw-compat-libcuda"), "GPU"),
        ("operation not supported", (), "GPU"),
    ],
)
def test_the_text_of_a_cuda_error_means_the_same_in_every_program(
    form: str, text: str, rules: tuple[str, ...], about: str
) -> None:
    answered = found(form.format(text))
    assert (tuple(rules_of(answered)), answered.about) == (rules, about)


@pytest.mark.parametrize(
    "line",
    [
        "node1:12:34 [0] NCCL INFO NET/IB : No device found.",
        "node1:12:34 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
        "node1:12:34 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
        "node1:12:34 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
        "the executor is currently idle: operation not supported",
    ],
)
def test_what_nccl_writes_on_every_healthy_machine_without_rdma_is_no_cause_and_no_known_error(line: str) -> None:
    quiet = f"node1:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n{line}\n"
    answered = found(quiet)
    assert (rules_of(answered), answered.telling, answered.exit_code) == ([], None, 20)
    assert found(quiet + "KeyError: 'weights'\n").about == "application"
