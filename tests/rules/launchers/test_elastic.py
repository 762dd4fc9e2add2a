"""How torchelastic agents start their ranks."""

from __future__ import annotations

import pytest

C10D = ("--nnodes=2", "--rdzv-backend", "c10d", "--rdzv-endpoint=10.0.0.1:29400", "--rdzv-id", "7", "train.py")
ACCELERATE = ("launch", "--num_machines=2", "--num_processes=4", "train.py")
ON_GPUS = {"program": "accelerate", "looks": ("environment", "meeting", "gpu")}
RESTARTED = {"nodes": 1, "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}


@pytest.mark.parametrize(
    ("arguments", "more", "rule", "severity", "nodes", "words"),
    [
        (C10D, {"per_node": (3, 2)}, "torchrun-nproc-mismatch", "info", ["node2"],
         "started 2 processes; other nodes have 3"),
        (("--nproc-per-node=gpu", *C10D), {"per_node": (8, 7)}, "torchrun-nproc-mismatch", "warning", ["node2"],
         "each node counted its own GPUs"),
        ((*C10D[:4], "train.py"), {"TORCHELASTIC_RUN_ID": "none"}, "torchrun-rdzv-id-shared", "info",
         ["node1", "node2"], "10.0.0.1:29400 has no id"),
        (("--nproc-per-node=2", "train.py"), {"nodes": 1, "program": "launch"}, "launch-local-rank-arg", "info",
         ["node1"], "passes --local-rank"),
        (("--max-restarts=3", "--standalone", "train.py"), RESTARTED, "elastic-restart-stale", "info", ["node1"],
         "restart 2 of at most 3"),
        (ACCELERATE, ON_GPUS | {"gpus": 4}, "accelerate-num-processes-total", "warning", ["node1", "node2"],
         "4 processes on 2 nodes with 4 GPUs each"),
    ],
)  # fmt: skip
def test_agents_that_start_their_ranks_in_an_unusual_way(under, one, arguments, more, rule, severity, nodes, words):
    found = one(under(*arguments, **more))
    assert (found.rule, found.severity, list(found.nodes)) == (rule, severity, nodes)
    assert words in found.message


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (C10D, {}),
        (C10D, {"NODE_RANK": "0"}),
        (("--use-env", "--nproc-per-node=2", "train.py"), {"nodes": 1, "program": "launch"}),
        (("--use_env", "--nproc-per-node=2", "train.py"), {"nodes": 1, "program": "launch"}),
        (("--max-restarts=3", "--standalone", "train.py"), RESTARTED | {"TORCHELASTIC_RESTART_COUNT": "0"}),
        (ACCELERATE, ON_GPUS | {"gpus": 2}),
    ],
)
def test_agents_that_start_their_ranks_as_usual_are_silent(under, judge, arguments, more):
    assert judge(under(*arguments, **more)).findings == ()


def test_the_total_for_accelerate_counts_all_nodes(under, one):
    assert "--num_processes=8" in one(under(*ACCELERATE, **ON_GPUS, gpus=4)).fix.commands[0]


@pytest.mark.parametrize("variable", ["NODE_RANK", "PET_NODE_RANK"])
@pytest.mark.parametrize("launcher", ["slurm", "by hand"])
def test_torchrun_node_rank_duplicated_before_torchrun_starts(job_of, change, judge, variable, launcher):
    job = change.environment(job_of(3, 1, launcher), None, **{variable: "0"})
    found = {f.rule: f for f in judge(job).findings}["torchrun-node-rank-duplicated"]
    assert (found.severity, found.ranks) == ("warning", (0, 1, 2))
    assert f"{variable} is 0" in found.message


def test_node_ranks_that_differ_are_silent(job_of, change, judge):
    job = job_of(3, 1, "slurm")
    for n in range(3):
        job = change.environment(job, n, NODE_RANK=str(n))
    assert judge(job).findings == ()
