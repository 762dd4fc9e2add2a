"""Faults of the training script, and what its other ranks and its launchers then report."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("AssertionError: Loading a checkpoint for MP=8 but world size is 1", "start-up"),
        ("AssertionError: Loading a checkpoint for MP=0 but world size is 1", "application"),
        ("AssertionError: expected local-rank to be the same as rank % device-count.", "start-up"),
        (
            "DDP expects same model across all ranks, but Rank 5 has 9 params, while rank 0 has inconsistent 0 params.",
            "GPU",
        ),
        (
            "DDP expects same model across all ranks, but Rank 5 has 9 params, while rank 0 has inconsistent 8 params.",
            "application",
        ),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072", "GPU"),
        ("[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess(x)", "GPU"),
        ("free(): invalid pointer", "application"),
        ("*** Error in `python': munmap_chunk(): invalid pointer: 0x00007f ***", "application"),
        ("corrupted double-linked list (not small)", "application"),
        ("*** stack smashing detected ***: terminated", "application"),
        ("Floating point exception (core dumped)", "application"),
        ("-- Process 1 terminated:\ntorch.multiprocessing.spawn.ProcessRaisedException: ", "application"),
        (
            "CalledProcessError: Command '['/usr/bin/python', '-u', 'a.py', '--x']' returned non-zero exit status 1.",
            "application",
        ),
        (
            "Sending process 3 closing signal SIGTERM\nfailed (exitcode: 1) local_rank: 0 (pid: 3) of binary: python",
            "application",
        ),
        ("ray.exceptions.RayTaskError(ValueError): ray::train() (pid=7)", "application"),
        ('Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()', "application"),
        (
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    dist.init_process_group()',
            "start-up",
        ),
        ("python: malloc.c:2385: sysmalloc: Assertion `(old_top == 0)' failed.", "application"),
        ("a.out: src/x.cc:7: void f(): Assertion `n > 0' failed.", "application"),
        ("pure virtual method called", "application"),
        ("Loss is nan, stopping training", "application"),
        ("by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.", "application"),
        ("Missing ranks: 1", "application"),
        ("[Rank 1] Received a dump signal from this local rank and will start to dump", "application"),
        ("Aborted", "application"),
        ("#2 c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<int>) + 0x1d2", "application"),
        ("frame #3: c10d::TCPStore::doWait(c10::ArrayRef<std::string>, int) + 0x1f", "network"),
        ("    raise ValueError('wrong shape')", "application"),
        ("in distributed_init\n    raise ValueError('Cannot initialize')", "start-up"),
        ("Unable to find hostfile, will proceed with training with local resources only.", "start-up"),
        ("Failed, NCCL error allreducePlugin.cpp:183 'unknown result code'", "start-up"),
        ("the driver could not be loaded", "GPU"),
        ("2024-01-01 ERROR worker cannot be contacted: the connection is gone", "network"),
        ("[ERROR] nvidia runtime is absent", "GPU"),
        ("[ERROR] the job did not begin", "start-up"),
    ],
)
def test_a_fault_of_the_script_or_of_its_start_has_its_class(text, about):
    answered = found(f"{HEALTHY}{text}\n{HEALTHY}")
    assert not rules_of(answered)
    assert answered.about == about


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "FileNotFoundError: [Errno 2] Failed to open local file '/c/cache-66a5cd42fef0_00000_of_00032.arrow'",
            "storage-not-shared",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/x/cache-66a5cd42fef01eaa.arrow'",
            "storage-not-shared",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/step_10/__8_0.distcp'", "storage-not-shared"),
        (
            "[Errno 2] No such file or directory: '/ckpt/global_step9/zero_pp_rank_8_mp_rank_00_optim_states.pt'",
            "storage-not-shared",
        ),
        (
            "ImportError: megatron/fused_kernels/build/scaled_softmax_cuda.so: cannot open shared object file",
            "storage-not-shared",
        ),
    ],
)
def test_a_file_that_another_node_prepared_is_not_shared(text, rule):
    assert rules(text)[0] == rule


@pytest.mark.parametrize(
    "text",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.arrow'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/model.pt'",
        "subprocess.CalledProcessError: Command '['nvcc', '--version']' returned non-zero exit status 1.",
        "0 errors, 0 warnings",
    ],
)
def test_near_misses_name_no_rule(text):
    assert not rules(text)


def test_a_line_with_the_form_of_a_failure_leads_only_where_nothing_else_does():
    guess = "the connection failed\n"
    assert found(guess).about == "network"
    assert found(guess + "Exits: srun: error: n1: task 3: Exited with exit code 1\n").telling.line == 2
    assert rules("the probe failed\ndevices used by this process are currently unknown\n") == ["gpu-barrier-guess"]


def test_a_traceback_leads_only_where_nothing_else_does():
    text = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyError: 'RANK'\n"
    assert rules(text)[0] == "env-rank-unset"
    assert found("0 ERROR\n" + text).telling.line == 4
