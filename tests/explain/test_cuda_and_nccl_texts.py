"""Texts of CUDA's errors and NCCL's rarer warnings, in the forms of several programs."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

from distcheck.explain.spelling import told

FORMS = (
    "RuntimeError: CUDA error: {}",
    "node1:12:34 [0] misc/strongstream.cc:60 NCCL WARN Cuda failure 800 '{}'",
    "node1: Test CUDA failure common.cu:892 '{}'",
    "RuntimeError: Triton Error [CUDA]: {}",
)
WARN = "node1:12:34 [0] init.cc:1085 NCCL WARN "


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
    ("text", "rule"),
    [
        ("transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'", "slurm-gpus-per-task-hides-gpus"),
        (f"{WARN}Error : ring 0 does not loop back to start (14 != 0)", "nccl-hostid-split"),
        (
            "/lib/libibverbs.so.1: version `IBVERBS_PRIVATE_22' not found (required by x.so)",
            "ib-no-device-in-container",
        ),
        ("NCCL INFO NCCL_IB_DISABLE set by environment to 0.\nNET/IB : No device found.", "ib-no-device-in-container"),
        ("NCCL INFO Bootstrap : Using ibp12s0:10.149.0.32<0>\nNET/IB : No device found.", "ib-no-device-in-container"),
        (f"{WARN}Call to recv from node2<56843> failed : Connection refused", "net-nccl-auto-wrong-iface"),
        (
            "ibrc.cpp:1851: neither nv_peer_mem, or nvidia_peermem detected\ninit failed for transport: IBGDA\n",
            "gdr-module-missing",
        ),
        ("failed call to hipInit: HIP_ERROR_NoDevice", "gpu-none-visible"),
        ("nvidia-container-cli: initialization error: cuda error: invalid device ordinal", "gpu-nvml-init-failed"),
        (f"{WARN}NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory", "ib-fork-or-memlock"),
        ("Caught signal 7 (Bus error: nonexistent physical address)", "host-shm-too-small"),
        ("health check failed: XID error: 79 on GPU 3", "gpu-fell-off-bus"),
        ("dcgm: GPU 2: XID error 94", "gpu-xid-recent"),
    ],
)
def test_a_rarer_warning_of_nccl_names_its_rule(text: str, rule: str) -> None:
    assert found(text).causes[0].rule == rule


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (f"{WARN}Net : Socket creation failed : Address family not supported by protocol", "network"),
        (f"{WARN}NET/IB : mlx5_0:1 Got async event : local catastrophic error", "network"),
        (f"{WARN}NET/OFI Request completed with error. RC: 21. Error: unknown error", "network"),
        (f"{WARN}HIP failure 'invalid device pointer'", "GPU"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "start-up"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "GPU"),
        (f"{WARN}Call to recv from 10.0.0.1<9> failed : Broken pipe", "network"),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\nncclRemoteError: A call failed",
            "network",
        ),
        ("src/nvshmem/ibgda.cpp:2234: NULL value Unable to create ah.", "network"),
    ],
)
def test_a_rarer_warning_that_no_rule_explains_has_its_class(text: str, about: str) -> None:
    answered = found(text)
    assert (rules_of(answered), answered.about) == ([], about)


def test_too_many_open_files_is_told_from_a_missing_interface() -> None:
    assert found(f"{WARN}Socket creation failed : Too many open files").causes[0].rule == "host-nofile"


@pytest.mark.parametrize("pattern", [r"(?:a|b)", r"\d+(?:x|y)*", r"a|b"])
def test_a_pattern_that_every_line_may_match_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"constant part|need a group"):
        told(pattern, about="GPU")


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
