"""distcheck that starts its probes by mpirun: Open MPI's, and MPICH's under the same name."""

from __future__ import annotations

import sys

import pytest
from cluster.etc import PATH
from cluster.inside import blocks, finding, findings, judged, placed

pytestmark = pytest.mark.without_slurm

PYTHON = f"{sys.prefix}/bin/python"
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(params=["openmpi", "mpich"])
def look(cluster, request):
    """Run distcheck with --launcher mpi on all nodes; return how it ended and its one report."""
    env = dict(_ROOT)
    if request.param == "mpich":
        cluster.write("head", "/shared/bin2/mpirun", '#!/bin/sh\nexec mpiexec.hydra "$@"\n')
        env = {"PATH": f"/shared/bin2:{PATH}"}

    def run(*words, **more):
        who = ("--launcher", "mpi", "--hosts", "node[1-4]", "--nproc", "2")
        return judged(cluster, *words, *who, **env, **more)

    return run


def test_a_healthy_job_is_healthy_and_variables_are_carried(cluster, look):
    words = ("net", "--join-timeout", "30", "--env", "NCCL_*", "--setup", "export UCX_TLS=tcp", "--save", "/tmp/job")
    ended, report = look(*words, NCCL_SOCKET_IFNAME="eth0")
    assert (ended.code, report["verdict"], findings(report, "error", "warning", "info")) == (0, "pass", []), report
    assert placed(report) == blocks(2, 2, 2, 2)
    assert (report["world"]["launcher"], report["missing_ranks"]) == ("mpi", [])
    assert cluster.read("head", "/tmp/job").count('"NCCL_SOCKET_IFNAME":"eth0"') == 8
    assert cluster.read("head", "/tmp/job").count('"UCX_TLS":"tcp"') == 8


def test_a_node_without_python_is_the_only_one_that_is_blamed(cluster, look):
    assert cluster.run("node3", "mv", PYTHON, f"{PYTHON}.hidden").code == 0
    ended, report = look("env", "--join-timeout", "8")
    assert (ended.code, findings(report)) == (40, ["launch-probe-missing"]), report
    found = finding(report, "launch-probe-missing")
    assert (found["nodes"], found["ranks"]) == (["node3"], [4, 5])
    assert report["exclude"]["nodes"] == ["node3"]


def test_a_node_that_is_cut_off_is_the_only_one_that_is_blamed(cluster, look):
    cluster.cut("node3")
    ended, report = look("env", "--join-timeout", "8")
    assert (ended.code, findings(report)) == (20, ["launch-node-unreachable"]), report
    found = finding(report, "launch-node-unreachable")
    assert (found["nodes"], found["ranks"]) == (["node3"], [4, 5])
    assert "ssh: connect to host node3 port 22: " in found["message"]
