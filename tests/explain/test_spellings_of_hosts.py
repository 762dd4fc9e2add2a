"""Hosts, folders and the ends of processes: the family of a message is known, and what only looks like it is not."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # memory
        ("systemd-oomd[812]: systemd-oomd killed 14 process(es) in this unit.", "host-memory-low"),
        ("train.service: A process of this unit has been killed by the OOM killer.", "host-memory-low"),
        ('earlyoom[901]: sending SIGTERM to process 4412 uid 1000 "python": badness 900', "host-memory-low"),
        ("ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node n1 is used", "host-memory-low"),
        ("Container killed by YARN for exceeding memory limits. 5.5 GB of 5.5 GB used", "host-memory-low"),
        ("pyarrow.lib.ArrowMemoryError: realloc of size 8589934592 failed", "host-memory-low"),
        ("memory allocation of 34359738368 bytes failed", "host-memory-low"),
        ("Your session crashed after using all available RAM.", "host-memory-low"),
        # threads and files
        ("OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max", "host-nproc-pids"),
        ("RuntimeError: Thread tf_data creation via pthread_create() failed.", "host-nproc-pids"),
        ("kernel: VFS: file-max limit 65536 reached", "host-nofile"),
        # shared memory
        ("OMP: Error #179: Function Can't open SHM2 failed:", "host-shm-not-writable"),
        ("PermissionError: [Errno 13] Permission denied: '/psm_0c51ce30'", "host-shm-not-writable"),
        ("FileExistsError: [Errno 17] File exists: '/000000_locals'", "host-shm-stale-files"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/sem.mp-k2'", "host-shm-removed-by-systemd"),
        ("OSError: [Errno 12] Cannot allocate memory: '/psm_9d1c'", "host-shm-too-small"),
        ("cma_ep.c:81 process_vm_writev(pid=42) returned -1: Operation not permitted", "host-ptrace-pidns"),
        # the clock
        ("Signature expired: 20260101T000000Z is now earlier than 20260101T001500Z", "host-clock-skew"),
        ("x509: certificate has expired or is not yet valid: current time 2020-01-01T00:00:00Z is before 2024",
         "host-clock-skew"),
        ("kinit: Clock skew too great while getting initial credentials", "host-clock-skew"),
        ("E: Release file for http://archive.ubuntu.com is not valid yet (invalid for another 3h)", "host-clock-skew"),
        # the kernel
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:123]", "host-stuck-processes"),
        ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: { 3}", "host-stuck-processes"),
        ("Reason=Kill task failed [root@2026-01-01T00:00:00]", "host-stuck-processes"),
        ("mce: CPU1: Package temperature above threshold, cpu clock throttled (9)", "host-cpu-throttled"),
    ],
)  # fmt: skip
def test_a_host_that_is_out_of_something_is_named_in_the_words_of_each_layer(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    "line",
    [
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to memory usage.",
        "x509: certificate has expired or is not yet valid: current time 2026-01-01T00:00:00Z is after 2024",
        "ray.exceptions.RayTaskError: memory budget of the cache is 12 GB",
        "earlyoom v1.7 started: mem total: 64 GiB",
        "terminate called after throwing an instance of 'rmm::bad_alloc'",
    ],
)
def test_words_about_memory_and_clocks_that_blame_nothing_name_no_rule(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/train'", "storage-path-missing"),
        ("NotADirectoryError: [Errno 20] Not a directory: '/scratch/data'", "storage-path-missing"),
        ("ValueError: Checkpoint directory /ckpt/step_100 does not exist", "storage-path-missing"),
        ("ls: cannot access '/lustre/project': No such file or directory", "storage-path-missing"),
        ("shell-init: error retrieving current directory: getcwd", "storage-path-missing"),
        ("PermissionError: [Errno 13] Permission denied: '/.triton'", "storage-read-only"),
        ("PermissionError: [Errno 13] Permission denied: '/ckpt/step_10/model.pt'", "storage-read-only"),
        (
            "There was a problem when trying to write in your cache folder (/.cache/huggingface/hub).",
            "storage-read-only",
        ),
        ("OSError: PermissionError at /root/.cache/huggingface/hub when downloading x", "storage-read-only"),
        ("SafetensorError: Error while serializing: I/O error: Permission denied (os error 13)", "storage-read-only"),
        ("OSError: Unable to create file (unable to open file: errno = 30, error message = 'x')", "storage-read-only"),
        ("SafetensorError: Error while serializing: I/O error: x (os error 28)", "storage-full"),
        ("ray.exceptions.OutOfDiskError: Local disk is full", "storage-full"),
        ("file_system_monitor.cc:111: /tmp/ray/session is over 95% full, available space: 1 GB", "storage-full"),
        ("RuntimeError: basic_ios::clear: iostream error", "storage-full"),
        ('Usage of EmptyDir volume "dshm" exceeds the limit "64Mi".', "host-shm-too-small"),
    ],
)
def test_a_folder_that_is_missing_closed_or_full_is_named(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


def test_a_file_that_is_missing_is_another_node_s_only_in_a_job_of_several_nodes():
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/train.jsonl'\n"
    assert rules(f"{HEALTHY}{missing}") == []
    assert rules(f"torchrun --nnodes=2 --node_rank=1 train.py\n{missing}")[0] == "storage-not-shared"
    assert rules("FileNotFoundError: [Errno 2] No such file or directory: 'config/train'\n") == []


@pytest.mark.parametrize("words", ["exit code", "exitcode: ", "return code = ", "with code ", "Exit Code:    "])
@pytest.mark.parametrize(
    ("codes", "about", "named"),
    [
        ((-9, 137), "process killed", []),
        ((-7, 135), "start-up", ["host-shm-too-small"]),
        ((-11, 139), "application", []),
        ((-15, 143), "process killed", []),
        ((126, 127), "start-up", None),
    ],
)
def test_an_exit_code_has_the_meaning_of_its_signal(words, codes, about, named):
    for code in codes:
        answered = found(f"{HEALTHY}worker ended, {words} {code}\n")
        assert answered.about == about
        assert named is None or rules_of(answered) == named


@pytest.mark.parametrize(
    "line", ["exit code 1379", "with code 9.2", "ticket 137", "status code: 139 bytes", "exit code 0"]
)
def test_other_numbers_are_no_signals(line):
    assert found(f"{HEALTHY}{line}\n").about is None


@pytest.mark.parametrize(
    "line",
    [
        "zsh: killed     python train.py",
        "[1]+  Killed                  nohup python train.py",
        "[1]    12345 killed     python",
    ],
)
def test_a_shell_that_reports_a_killed_job_is_a_killed_process(line):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], "process killed")


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("systemd[1]: train.service: Main process exited, code=killed, status=9/KILL", "process killed"),
        ("systemd[1]: train.service: Main process exited, code=dumped, status=11/SEGV", "application"),
        (
            "A worker process managed by the executor was unexpectedly terminated: a segmentation fault",
            "process killed",
        ),
        ("TERM_OWNER: job killed by owner.", "process killed"),
        ("AlgorithmError: ExecuteUserScriptError: exit 1", "application"),
        ("[cli_0]: write_line error; fd=6 buf=:cmd=init pmi_version=1", "application"),
    ],
)
def test_a_process_that_ended_has_its_class(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)
