"""What kind of answer a log gets: the line that leads, its class, and what is run or changed next."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

from distcheck.explain.rendering import as_markdown, as_text

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
    later = "node1: Net : Call to recv from 10.0.0.4<52114> failed : Broken pipe"
    assert found(f"{status}\nLast error:\nsomething else\n{later}\n").telling.line == 1


@pytest.mark.parametrize("status", STATUSES)
def test_the_reason_of_a_return_code_leads_also_if_a_logger_calls_it_a_warning(status):
    answer = found(f"{status}\nLast error:\nWARNING: Duplicate GPU detected : rank 1 and rank 0\n")
    assert answer.causes[0].rule == "gpu-duplicate"
    assert "Duplicate" in answer.telling.text


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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  exitcode  : -9 (pid: 12)", "A process was ended by SIGKILL. Most often the host"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "The GPU ran out of memory."),
        ("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-28T13:52:02 DUE TO TIME LIMIT ***", "The job "),
        ("RuntimeError: NCCL WARN NET/IB : collective mismatch error", "The ranks called different collectives"),
    ],
)
def test_a_cause_that_a_sentence_names_is_among_the_causes(line, words):
    answer = found(f"[rank3]: {line}\n")
    (cause,) = answer.causes
    assert (cause.rule, cause.fix, cause.prove, cause.rank, answer.exit_code) == (None, None, None, 3, 0)
    assert cause.summary.startswith(words)
    assert as_text(answer).startswith(words)
    assert as_text(answer).count(words) == as_markdown(answer).count(words) == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "nvidia-smi --query-compute-apps="),
        ("NCCL WARN NET/IB : collective mismatch error", "TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND"),
        ("Detected mismatch between collectives on ranks. Rank 0 is running x", "grep -rn -B 30 'Detected mismatch"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1 COMMAND"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "NCCL_DEBUG=WARN COMMAND"),
        ("srun: error: node2: task 1: Segmentation fault", "PYTHONFAULTHANDLER=1 COMMAND"),
        (
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
            "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        ),
        ("  exitcode  : -9 (pid: 12)", "sudo dmesg -T | grep -i -E 'oom"),
        ("ValueError: the script's own", None),
        ("IndexError: list index out of range", None),
        ("SyntaxError: invalid syntax", None),
    ],
)
def test_what_to_run_next_goes_by_the_fault(text, first):
    answer = found(f"[rank1]: {text}\n")
    assert rules_of(answer) == []
    assert (answer.next or (None,))[0] == first or answer.next[0].startswith(first)


FRAMES = 'Traceback (most recent call last):\n  File "t.py", line 9\n    main()\n{}  File "t.py", line 5\n    f()\n'
WARNINGS = (
    "[W1120 10:00:00 socket.cpp:7] [c10d] waits in the rendezvous",
    "/usr/lib/torch/distributed/launch.py:163: FutureWarning: use torchrun\n  warnings.warn(",
    "accelerate/state.py:12: UserWarning: x",
    "DeepSpeed hostfile not found",
    "2026-11-20 10:00:00.123 | INFO     | init_process_group: done",
)


@pytest.mark.parametrize("warning", WARNINGS)
@pytest.mark.parametrize(
    "error", ["MyError: boom\n", "    raise MyError\n", "  File 't.py', line 3\nRuntimeError: odd\n"]
)
def test_the_class_of_an_unknown_error_does_not_depend_on_the_warnings_of_others(warning, error):
    lines = f"{warning}\n"
    for text in (lines + error, lines + FRAMES.format("") + error, FRAMES.format(lines) + error, error + lines):
        assert found(text).about == "application"


@pytest.mark.parametrize("error", ["MyError: boom\n", "RuntimeError: odd\n"])
def test_the_class_of_an_unknown_error_depends_on_where_it_was_raised(error):
    frames = FRAMES.format('  File "torch/distributed/distributed_c10d.py", line 7, in init_process_group\n    g()\n')
    assert found(frames + error).about == "start-up"


@pytest.mark.parametrize(
    ("before", "line", "command"),
    [
        ("", "NCCL WARN Bootstrap : no socket interface found", None),
        ("NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens5", "NCCL WARN Bootstrap : no socket interface found",
         "unset NCCL_SOCKET_IFNAME"),
        ("{'NCCL_SOCKET_IFNAME': 'ens5'}", "NCCL WARN Bootstrap : no socket interface found",
         "unset NCCL_SOCKET_IFNAME"),
        ("look at NCCL_SOCKET_IFNAME", "NCCL WARN Bootstrap : no socket interface found", None),
        ("TORCHELASTIC_USE_AGENT_STORE=True", "[c10d] The client socket has timed out after 60s while trying",
         "unset ${!TORCHELASTIC_@}"),
    ],
)  # fmt: skip
def test_a_fix_unsets_only_variables_that_the_log_shows_as_set(before, line, command):
    commands = found(f"{before}\nnode1:12:34 [0] {line}\n").causes[0].fix.commands
    unset = [own.split("  #")[0] for own in commands if own.startswith("unset")]
    assert unset == ([command] if command else [])
