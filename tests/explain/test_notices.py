"""Attempts to connect that a program repeats: they lead only where the ranks did not meet later."""

from __future__ import annotations

import pytest
from explain.answered import found, rules_of

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
