"""A running job on several nodes: the rank that holds it up, on which node and at which line."""

from __future__ import annotations

import json
import sys

import pytest
from cluster.inside import PATIENCE, filtered, mapped, running, two_each
from forms.sampled import sampled
from hang.expected import CASES

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--master-addr=node1")


def looked(cluster, *words, at="head"):
    ended = cluster.run(at, "distcheck", "hang", "--format", "json", *words, timeout=PATIENCE)
    assert ended.out.count("\n") == 1, ended
    report = json.loads(ended.out)
    return ended.code, report["hang"], report


@pytest.mark.without_slurm
def test_the_rank_its_node_and_its_line_are_named_by_ssh(cluster):
    agents = [(f"node{n + 1}", (*TORCHRUN, "--master-port=29733", f"--node-rank={n}"), {}) for n in range(2)]
    with running(cluster, "mismatched_collective", agents):
        code, hang, _ = looked(cluster, "--hosts", "node[1-2]")
        assert (code, CASES["mismatched_collective"].disagreements(hang)) == (30, []), hang
        assert [(odd["rank"], odd["node"], odd["function"]) for odd in hang["odd"]] == [
            (3, "node2", "mismatched_collective")
        ]
        assert [(row["ranks"], row["in"]) for row in hang["waiting"]] == [("0-2", "all_reduce")]

        code, hang, report = looked(cluster, at="node1")
        assert (code, hang["answer"], hang["odd"], hang["unseen"]) == (20, "cannot tell", [], [2, 3])
        assert "--hosts" in report["not_checked"][0]["reason"]


@pytest.mark.without_slurm
def test_a_job_that_works_is_not_hung_with_a_silent_node_and_a_cut_is_the_network(cluster):
    with running(cluster, "quick_steps", two_each("node2", "node3")):
        cluster.kill_service("node4", "sshd")
        code, hang, report = looked(cluster, "--hosts", "node[2-4]")
        assert (code, hang["answer"], len(hang["ranks"])) == (0, "not hung", 4), report
        assert looked(cluster, at="node3")[1]["answer"] == "not hung"

        filtered(cluster, "node2", f"ip saddr {cluster.networks[0]}.13 drop")
        code, hang, report = looked(cluster, "--hosts", "node[2-4]", "--wait", "4")
        assert (code, [f["rule"] for f in report["findings"]]) == (20, ["hang-no-packets"]), report
        assert {row["node"] for row in hang["odd"]} <= {"node2", "node3"}
        (found,) = looked(cluster, at="node3")[2]["findings"]  # the one whose packets nobody acknowledges
        assert (found["rule"], {*found["ranks"]} <= {2, 3}) == ("hang-no-packets", True)
        assert f"{cluster.networks[0]}.12" in found["message"]


@pytest.mark.parametrize(
    "name", sampled({n: n for n in ("mismatched_collective", "fifo", "before_init")}, "mismatched_collective")
)
def test_the_ranks_of_a_slurm_job_are_looked_at_through_srun(name, cluster):
    srun = ("srun", "--nodes=2", "--ntasks=4", "--overcommit", *mapped("SLURM_", "PROCID NTASKS LOCALID"))
    with running(cluster, name, [("head", (*srun, sys.executable), {})]):
        number = cluster.run("head", "squeue", "--noheader", "--format", "%i").out.strip()
        code, hang, _ = looked(cluster, "--job", number)
    assert (code, CASES[name].disagreements(hang)) == (30, []), hang
    assert {odd["node"] for odd in hang["odd"]} == {f"node{1 + rank // 2}" for rank in CASES[name].odd}
