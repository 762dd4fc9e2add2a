"""What kind of answer a log gets: the line that leads, its class, and what is run or changed next."""

from __future__ import annotations

import pytest
from explain.answered import found

STATUS = "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, {}, NCCL version 2.19.3\n{}"
STATUSES = (
    STATUS.format("unhandled system error", "ncclSystemError: System call or external library call failed."),
    STATUS.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."),
    STATUS.format("internal error", "ncclInternalError: Internal check failed."),
    STATUS.format("invalid usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    STATUS.format("invalid argument", "ncclInvalidArgument: Invalid value for an argument."),
    STATUS.format("remote process exited or there was a network error", "ncclRemoteError: A call failed."),
    "[PG 1 Rank 4] Process group watchdog thread terminated with exception: NCCL error: internal error",
)
REASONS = (
    ("Error while creating shared memory segment /dev/shm/nccl-Jx2 (size 9637888)", "host-shm-too-small"),
    ("Failed to CUDA calloc async 608 bytes", None),
    ("Net : Call to recv from 10.0.0.4<52114> failed : Connection reset by peer", None),
    ("NET/IB: Got completion from peer 10.0.1.23<34696> with status=5 opcode=0", None),
    ("Cuda failure 'invalid argument'", None),
)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(("words", "rule"), REASONS)
def test_a_return_code_does_not_lead_where_its_reason_is_known(status, words, rule):
    answer = found(f"{status}\nLast error:\n{words}\n")
    assert words in answer.telling.text
    assert rule in {None, *(cause.rule for cause in answer.causes[:1])}


@pytest.mark.parametrize("status", STATUSES)
def test_a_return_code_leads_where_its_reason_is_unknown(status):
    assert found(f"{status}\nLast error:\nsomething else\n").telling.line == 1


@pytest.mark.parametrize(
    "words",
    [
        "waitForInput: socket SocketImpl(fd=35, addr=[n1]:44, remote=[n2]:29500) timed out after 600000ms",
        "waitForInput: poll for socket SocketImpl(fd=35, addr=[n1]:44, remote=[n2]:29500) returned 0, likely a timeout",
    ],
)
def test_a_wait_for_the_store_is_known_in_both_of_its_wordings(words):
    answer = found(f"[rank1]:[W1120 10:00:00.1 socket.cpp:1019] [c10d] {words}\n")
    assert answer.causes[0].rule == "env-rank-missing"
