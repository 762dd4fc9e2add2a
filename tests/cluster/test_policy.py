"""Nodes of one job whose policies differ: rank 0's judges, and the report names who has which."""

from __future__ import annotations

from cluster.inside import finding, reports
from cluster.test_inside_slurm import srun, tasks

PLACE = "/run/distcheck/policy.toml"


def test_the_policy_of_rank_0_judges_and_other_policies_are_named(cluster):
    cluster.write("node1", PLACE, 'mode = "observe"\nrequired-paths = ["/nonexistent"]\n')
    cluster.write("node2", PLACE, 'mode = "enforce"\n')
    job = tasks("distcheck", "net", "--format", "json")
    shape = ("--nodes=2", "--ntasks-per-node=1")
    master = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "DISTCHECK_POLICY": PLACE}
    ended = srun(cluster, *shape, *job, **master)
    (report,) = reports(ended)
    assert (ended.code, report["policy"]["mode"], report["would"]["exit_code"]) == (0, "observe", 30)
    differs = finding(report, "tool-policy-differs")
    assert "node1: policy" in differs["message"]
    assert "node2: policy" in differs["message"]
    cluster.write("node2", PLACE, 'mode = "observe"\nrequired-paths = ["/nonexistent"]\n')
    (report,) = reports(srun(cluster, *shape, *job, **master))
    assert "tool-policy-differs" not in [f["rule"] for f in report["findings"]]
