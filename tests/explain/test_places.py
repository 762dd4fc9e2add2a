"""Who wrote a line, and when."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from distcheck.explain import places
from distcheck.explain.places import Place, message, of_path, place, plain, when


@pytest.mark.parametrize(
    ("line", "rank", "node"),
    [
        ("[rank3]: RuntimeError: x", 3, None),
        ("[default1]:[rank9]: RuntimeError: x", 9, None),
        ("3: RuntimeError: x", 3, None),
        ("node2: RuntimeError: x", None, "node2"),
        ("node2: [rank1]: RuntimeError: x", 1, "node2"),
        ("gpu-a01.cluster: 12: [rank12]:[W1120 10:00:00.1 socket.cpp:7] x", 12, "gpu-a01.cluster"),
        ("[1,5]<stderr>:RuntimeError: x", 5, None),
        ("[pod/train-worker-1/pytorch] RuntimeError: x", None, "train-worker-1"),
        ("2026-11-28T07:00:04.123456789Z stderr F 3: RuntimeError: x", 3, None),
        ("worker-1  | RuntimeError: x", None, "worker-1"),
        ("node7:123:456 [3] NCCL WARN x", None, "node7"),
        ("[2024-05-01 10:00:00] node7:123:456 [3] NCCL WARN x", None, "node7"),
        ("[rank2]:[E1120 10:00:00 ProcessGroupNCCL.cpp:1] [PG 0 Rank 2] x", 2, None),
        ("[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog x", 1, None),
        ("[node2:01234] Signal: Segmentation fault (11)", None, "node2"),
        ("[runner.py:21534] x", None, None),
        ("[multiproc_executor3.py:522] x", None, None),
        ("srun: error: node4: task 5: Killed", 5, "node4"),
        ("172.16.220.18: RuntimeError: x", None, "172.16.220.18"),
        ("[1,mpirank:9,algo-2]<stderr>:RuntimeError: x", 9, "algo-2"),
        ("Mon Nov 23 05:30:30 2026[1]<stderr>:RuntimeError: x", 1, None),
        ("(RayWorkerWrapper pid=1978, ip=10.41.0.8) [rank9]: RuntimeError: x", 9, "10.41.0.8"),
        ("(4l0_1:13 WorkerDict pid=20, ip=[2605:340::1]) RuntimeError: x", None, "2605:340::1"),
        ("(worker1, rank=1, pid=4503, ip=10.0.0.7) [rank12]: RuntimeError: x", 12, "worker1"),
        ("[2024-02-27T21:05:18.6Z] fa88a9df [rank=3] || RuntimeError: x", 3, None),
        ("[3]:RuntimeError: x", 3, None),
        ("r12i0n8:3: RuntimeError: x", 3, "r12i0n8"),
        ("conv2d.py:12: UserWarning: x", None, None),
        ("RuntimeError: x", None, None),
        ("ValueError: invalid literal", None, None),
        ("nvidia-container-cli: initialization error 802", None, None),
        ("debug1: Reading configuration data", None, None),
        ("python3.11: can't open file", None, None),
        ("GPU0: 100 MiB", None, None),
        ("libcudart.so.10.1: cannot open shared object file", None, None),
        ("x1921c1s1b0n0-hsn0...: rank 16 exited", 16, "x1921c1s1b0n0-hsn0"),
        ("trainer-2: Traceback", None, "trainer-2"),
        ("mpirun noticed that process rank 2 with PID 316 on node node3 exited on signal 9 (Killed).", 2, "node3"),
    ],
)
def test_prefixes_of_launchers_and_loggers_name_rank_and_node(line, rank, node):
    assert place(line)[:2] == (rank, node)


@pytest.mark.parametrize(
    ("template", "line", "expected"),
    [
        ("${role_name} ${rank} on ${hostname} | ", "default 3 on node2 | RuntimeError: x", Place(3, "node2")),
        ("<${local_rank}/${rank}>", "<1/9>[rank9]: RuntimeError: x", Place(9, local_rank=1)),
        ("r${rank}+${rank}: ", "r4+4: RuntimeError: x", Place(4)),
        ("${rank}", "RuntimeError: x", Place()),
        ("no macro: ", "no macro: [rank2]: RuntimeError: x", Place(2)),
    ],
)
def test_a_template_of_torchruns_variable_is_read(monkeypatch, template, line, expected):
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", template)
    places._templated.cache_clear()
    try:
        assert place(line) == expected
        assert message(line) == "RuntimeError: x"
    finally:
        places._templated.cache_clear()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[default3]:RuntimeError: x", Place(local_rank=3)),
        ("[trainer3|0]:RuntimeError: x", Place(local_rank=3)),
        ("node2: [default3]: cannot reach rank 0", Place(node="node2", local_rank=3)),
        ("[default3]:[rank11]: RuntimeError: x", Place(11, local_rank=3)),
        ("1: [default3]: RuntimeError: x", Place(local_rank=3)),
        ("[1,1]<stderr>:[default3]: RuntimeError: x", Place(local_rank=3)),
        ("[default3]:[E ProcessGroupNCCL.cpp:475] [Rank 11] Watchdog x", Place(11, local_rank=3)),
    ],
)
def test_torchruns_prefix_is_a_local_rank_and_no_rank(line, expected):
    assert place(line) == expected


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[2024-05-01 10:00:01,500] torch.distributed.elastic x", (5, 1, 36001.5)),
        ("2024-05-01T10:00:01.5Z x", (5, 1, 36001.5)),
        ("[W1120 10:00:01.500000 socket.cpp:1] x", (11, 20, 36001.5)),
        ("[W404 00:15:21.69 ProcessGroupNCCL.cpp:1] x", (4, 4, 921.69)),
        ("[Wed Jul 31 23:14:18 2024] NVRM: x", (7, 31, 83658.0)),
        ("INFO 05-01 10:00:01 [api.py:1] x", (5, 1, 36001.0)),
        ("05/01/2024 10:00:01 - INFO - x", (5, 1, 36001.0)),
        ("[05/01 10:00:01 d2.engine]: x", (5, 1, 36001.0)),
        ("Nov 20 10:00:02 n1 slurmstepd[7]: [W1120 09:00:01.500000 socket.cpp:1] x", (11, 20, 36002.0)),
        ("2024-11-20T10:00:02Z stderr F [W1120 11:00:01.5 socket.cpp:1] x", (11, 20, 36002.0)),
        ("step 10:00:01 of nothing", None),
    ],
)
def test_times_of_loggers_are_read(line, time):
    assert when(line) == time


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("logs/none_x1/attempt_0/3/stderr.log", Place(local_rank=3)),
        ("logs/node2/none_x1/attempt_0/3/stderr.log", Place(node="node2", local_rank=3)),
        ("logs/rank_12.log.gz", Place(12)),
        ("logs/node-04.log", Place(node="node-04")),
        ("logs/gpu-node3.log", Place(node="gpu-node3")),
        ("gpu-a01/job.log", Place(node="gpu-a01")),
        ("logs/gpu0.log", Place()),
        ("logs/gpu-job.log", Place()),
        ("logs/gpu_job_17.log", Place()),
        ("logs/GPU3-rank_5.out", Place(5)),
        ("/home/me/job.log", Place()),
    ],
)
def test_a_files_path_names_rank_and_node(path, expected):
    assert of_path(PurePath(path)) == expected


def test_control_sequences_leave_no_trace():
    assert plain("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x00y\x9bz") == "red x y z"
