"""Notices of programs that go on: they lead only where the log has nothing else."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

WITHOUT_NUMPY = "functional_tensor.py:276: UserWarning: Failed to initialize NumPy: No module named 'numpy'"
ENDINGS = [
    "KeyError: 'labels'",
    "E1127 10:00:00 elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 2 (pid: 99)",
    "[rank2]: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
    "Connection closed by peer [10.0.0.2]:41",
]
"""What ends a job: a mistake, SIGKILL, a collective that timed out, and a rank's connection to one that ended."""


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "notice",
    [
        WITHOUT_NUMPY,
        "xFormers not available: No module named 'xformers'",
        "flash_attn is not installed: ModuleNotFoundError: No module named 'flash_attn'",
        "INFO 07-01 10:00:00 ImportError: No module named apex",
        "WARNING:root:ModuleNotFoundError: No module named 'tensorboard'",
        "mpirun detected: UserWarning: No module named 'numpy'",
    ],
)
def test_a_module_that_a_program_does_without_is_no_cause_of_what_ends_it_later(notice, ending):
    answer = found(f"{notice}\nstep 1\n{ending}\n")
    assert (answer.telling.line, rules_of(answer)) == (3, [])


@pytest.mark.parametrize(
    "error",
    [
        "[rank1]: ModuleNotFoundError: No module named 'einops'",
        "ModuleNotFoundError: No module named 'warnings_of_mine'",
        "ImportError: No module named yaml",
        "/usr/bin/python3.11: No module named mytrainer",
        "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
    ],
)
def test_a_module_that_python_itself_misses_is_the_cause_before_what_other_ranks_report(error):
    answer = found(f"{WITHOUT_NUMPY}\n{error}\n{ENDINGS[2]}\n{ENDINGS[3]}\n")
    assert (answer.telling.line, answer.about) == (2, "start-up")


def test_a_module_that_a_program_does_without_is_told_where_the_log_has_nothing_else():
    notice = "xFormers not available: No module named 'xformers'"
    assert found(f"{notice}\n").telling.says == "A Python module is missing in the job's environment."


def test_torch_without_numpy_is_told_only_where_the_script_needs_it():
    assert found(f"{WITHOUT_NUMPY}\nrank 0 of 4 starts\nstep 1 loss 0.5\n").telling is None
    answer = found(f"{WITHOUT_NUMPY}\nstep 1\n[rank1]: RuntimeError: Numpy is not available\n{ENDINGS[3]}\n")
    assert (answer.telling.line, answer.about) == (3, "start-up")
    assert answer.telling.says.startswith("numpy is missing")


RETRIES = [
    "[W1127 10:00:00.00 socket.cpp:752] [c10d] The client socket has failed to connect to [n]:29500 (errno: 111 - x)",
    "failed to connect to the master 10.0.0.1:29500, will retry",
    "[I TCPStore.cpp:300] connect to 10.0.0.1:29500: Connection refused. Retrying...",
    "worker 3: store 10.0.0.1: Connection timed out, retrying in 5 s",
]
TRACEBACK = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 3, in <module>\n[rank3]: '


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize(
    ("ending", "about"),
    [
        (f"{TRACEBACK}ValueError: bad sample", "application"),
        (f"{TRACEBACK}mytrain.Diverged: after 3 steps", "application"),
        ("RuntimeError: CUDA error: something new", "GPU"),
        ("node2: train.sh: line 3: 99 Killed", "process killed"),
        ("Segmentation fault (core dumped)", "application"),
        ("{'loss': 2.31, 'epoch': 1}\ngoodbye", None),
        ("step 10 loss=2.31\ngoodbye", None),
    ],
)
def test_an_attempt_to_connect_that_is_repeated_is_no_cause_of_what_comes_after_the_ranks_met(retry, ending, about):
    answer = found(f"{retry}\n{ending}\n")
    assert (answer.about, rules_of(answer)) == (about, [])


@pytest.mark.parametrize("retry", [RETRIES[0], *RETRIES[2:]])
@pytest.mark.parametrize(
    "ending",
    [
        "",
        "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (n1, 29500)",
        f"{TRACEBACK}  dist.init_process_group()\n[rank3]: mytrain.NotStarted: no peers",
        "srun: error: node3: task 3: Terminated",
        "KeyboardInterrupt",
    ],
)
def test_attempts_to_connect_that_are_repeated_to_the_end_are_the_cause(retry, ending):
    answer = found(f"{retry}\n{ending}\n")
    assert answer.causes[0].rule in {"net-master-refused", "net-master-unreachable"}


@pytest.mark.parametrize(
    "notice",
    [
        "epoch 1: train error: 0.23",
        "epoch 1 val_error: 12.5%, lr: 0.1",
        "mean squared error: 1.2e-3 loss 0.4",
        "Test Error: ",
        "validation error: nan",
        "WARNING: error: could not read the cache",
        "WARNING:root:ValueError: no cache",
        "2024-05-01 10:00:00,123 [WARNING] OSError: cannot stat cache",
        "2024-05-01 10:00:00,123 | INFO | error: retried",
        "cache.py:3: UserWarning: error: no cache",
        "WARNING: rank 3 did not join the logging service",
    ],
)
def test_a_measure_and_a_warning_do_not_go_before_a_traceback(notice):
    answer = found(f"{notice}\n{TRACEBACK}ValueError: bad sample\n")
    assert (answer.telling.line, rules_of(answer)) == (4, [])
    assert found(f"{notice}\nstep 2\n").telling is None


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: 0.5, expected 1",
        "CUDA error: unknown",
        "launcher: error: 1.5 GB of memory missing",
        "train.py: error: 10.0.0.1:29500 is taken by another",
        "node1:1:2 [0] misc/x.cc:7 NCCL WARN something new",
    ],
)
def test_an_error_with_a_number_is_no_measure(error):
    assert found(f"{error}\n").telling.line == 1


NO_GPU, NO_GPU_RULE = "RuntimeError: No CUDA GPUs are available", "gpu-none-visible"
IN_USE, IN_USE_RULE = "The server socket has failed to bind to [::]:29500 (errno: 98 - x).", "net-port-in-use"


@pytest.mark.parametrize("level", ["WARNING:root:", "10:00:00,123 [WARNING] ", "2024-05-01 10:00:00 | WARNING | "])
def test_a_warning_in_the_words_of_a_fatal_error_goes_after_the_error_that_ends_the_job(level):
    for warned, ending, rule in ((NO_GPU, IN_USE, IN_USE_RULE), (IN_USE, NO_GPU, NO_GPU_RULE)):
        answer = found(f"{level}{warned}\nstep 1\n{ending}\n")
        assert (answer.telling.line, answer.causes[0].rule) == (3, rule)
    answer = found(f"{level}{IN_USE}; trying again\nstep 1\n{IN_USE}\n")
    assert (answer.telling.line, answer.causes[0].rule, answer.causes[0].times) == (3, IN_USE_RULE, 2)


def test_a_warning_in_the_words_of_a_fatal_error_leads_where_no_rule_names_what_ends_the_job():
    for ending in ENDINGS:
        answer = found(f"WARNING:root:{NO_GPU}\nstep 1\n{ending}\n")
        assert (answer.telling.line, answer.causes[0].rule) == (1, NO_GPU_RULE)


def test_a_file_that_hides_a_package_is_named_as_one():
    error = "ModuleNotFoundError: No module named 'torch.distributed'; 'torch' is not a package"
    assert found(f"{error}\n").telling.says.startswith("A file beside the script has the name of a package")
