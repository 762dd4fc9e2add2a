"""Finding rules by the errors in a job log."""

from __future__ import annotations

import io

import pytest

from distcheck.cli.joblog import messages, search, tell

KNOWN = messages()
TRAINING = """
node1: NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
[rank0]:[W1120 10:00:00 ProcessGroupNCCL.cpp:4115] step 100 loss 2.31 lr 0.0003
epoch 3/10: 100%|##########| 1200/1200 [10:00<00:00, 2.00it/s]
saving checkpoint to /mnt/ckpt/step_1200 ... done in 12.3 s
Timed out? no. CUDA error rate 0; waiting for clients: none.
"""

PORT_IN_USE = (
    "[E socket.cpp] The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)


def named(text):
    return [{rule.name for rule in found.message.rules} for found in search(io.BytesIO(text.encode()), KNOWN)]


@pytest.mark.parametrize("message", KNOWN, ids=lambda m: m.text[:40])
def test_a_quoted_message_is_found(message):
    (found,) = search(io.BytesIO(f"{TRAINING}[rank3]: {message.text}\n{TRAINING}".encode()), KNOWN)
    assert {rule.name for rule in message.rules} <= {rule.name for rule in found.message.rules}
    assert (found.line_number, found.times) == (7, 1)


def test_the_log_of_a_healthy_job_matches_no_rule():
    assert named(TRAINING * 100) == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("DistStoreError: Timed out after 121 seconds waiting for clients. 3/4 clients joined.", "env-rank-missing"),
        ("node7 [3] NCCL WARN Duplicate GPU detected : rank 11 and rank 10 both on CUDA device 9b000", "gpu-duplicate"),
        (PORT_IN_USE, "net-port-in-use"),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu-nvml-init-failed"),
        ("\x1b[31mDataLoader worker (pid 7) is killed by signal: Bus error.\x1b[0m", "host-shm-too-small"),
        ("train.py: error: unrecognized arguments: --local-rank=5", "launch-local-rank-arg"),
        ("ValueError: environment variable MASTER_ADDR expected, but not set", "env-empty-string"),
        ("cuda error: invalid device ordinal", "gpu-fewer-than-needed"),
    ],
)
def test_messages_match_with_other_numbers_names_and_colours(line, rule):
    (rules,) = named(f"{TRAINING}{line}\n")
    assert rule in rules


def test_a_message_is_reported_once_with_its_first_line_and_count():
    log = TRAINING + "CUDA error: invalid device ordinal\n" * 3 + "No CUDA GPUs are available\n"
    found = search(io.BytesIO(log.encode()), KNOWN)
    assert [(f.line_number, f.times) for f in found] == [(7, 3), (10, 1)]
    text = tell(found, "job.log")
    assert "job.log:7 (3 times): CUDA error: invalid device ordinal\n" in text
    assert "job.log:10: No CUDA GPUs are available\n" in text
    assert "`distcheck explain RULE` has details" in text


def test_line_numbers_are_right_in_a_log_read_in_pieces():
    filler = ("x" * 99 + "\n") * 30_000
    log = filler + "No CUDA GPUs are available\n" + filler
    (found,) = search(io.BytesIO(log.encode()), KNOWN)
    assert found.line_number == 30_001


@pytest.mark.parametrize("junk", [b"", b"\n\n", bytes(range(256)) * 50, b"\xff" * 5_000_000, b"no newline at the end"])
def test_any_file_is_read_to_its_end(junk):
    assert search(io.BytesIO(junk), KNOWN) == []
    assert "none of the error messages" in tell([], "job.log")


def test_a_progress_bar_is_one_line():
    bar = "\r".join(f"epoch 1: {n}%" for n in range(100))
    (found,) = search(io.BytesIO(f"{bar}\nNo CUDA GPUs are available\n".encode()), KNOWN)
    assert found.line_number == 2


def test_a_last_line_without_a_newline_is_searched():
    (found,) = search(io.BytesIO(b"start\nNo CUDA GPUs are available"), KNOWN)
    assert found.line_number == 2


def test_control_characters_of_a_log_do_not_reach_the_terminal():
    text = tell(search(io.BytesIO(b"\x1b]0;title\x07 No CUDA GPUs are available\x1b[2J\n"), KNOWN), "job.log")
    assert "\x1b" not in text
    assert "\x07" not in text
