"""What kind of answer a log gets: the line that leads, its class, and what is run or changed next."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

from distcheck.explain.rendering import as_markdown, as_text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  exitcode  : -9 (pid: 12)", "A process was ended by SIGKILL. Most often the host"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "The GPU ran out of memory."),
        ("slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-28T13:52:02 DUE TO TIME LIMIT ***", "The job "),
        ("RuntimeError: NCCL WARN NET/IB : collective mismatch error", "The ranks called different collectives"),
        (
            "ImportError: No module named 'torch.distributed'; 'torch' is not a package",
            "A file beside the script has the",
        ),
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
