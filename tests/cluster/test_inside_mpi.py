"""distcheck as the ranks of Open MPI's mpirun and MPICH's mpiexec on real nodes."""

from __future__ import annotations

import re
import sys

import pytest
from cluster.inside import (
    GATE,
    JOB,
    LOOKED_AT,
    MASTER,
    NODES,
    PATIENCE,
    PLAIN_JOB,
    assert_healthy,
    blocks,
    finding,
    findings,
    mapped,
    reports,
    summed,
)
from forms.sampled import sampled

_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _openmpi(*command):
    return mapped("OMPI_COMM_WORLD_", "RANK SIZE LOCAL_RANK", *command)


def _mpich(*command):
    return mapped("", "PMI_RANK PMI_SIZE MPI_LOCALRANKID", *command)


def _mpirun(*options, nodes=NODES):
    return ("mpirun", "--host", ",".join(f"{node}:2" for node in nodes), *options)


def _mpiexec(*options, nodes=NODES):
    return ("mpiexec.hydra", "-hosts", ",".join(nodes), "-ppn", "2", "-n", str(2 * len(nodes)), *options)


@pytest.mark.parametrize(
    ("address", "program"), sampled({"eth0": ("node1", PLAIN_JOB), "eth1": ("node1-data", JOB)}, "eth0")
)
def test_open_mpi_is_healthy_and_the_job_runs_after_it(cluster, address, program):
    carried = ("-x", f"MASTER_ADDR={address}", "-x", "MASTER_PORT=29500")
    job = _openmpi("distcheck", *GATE, "--", sys.executable, program)
    ended = cluster.run("node1", *_mpirun(*carried, nodes=NODES[:2]), *job, env=_ROOT, timeout=PATIENCE)
    report = assert_healthy([ended], blocks(2, 2), "openmpi")
    assert findings(report, "info") == []


@pytest.mark.without_slurm
def test_open_mpi_over_ssh_in_a_job_of_pbs_is_healthy(cluster):
    carried = ("-x", "MASTER_ADDR=node1", "-x", "MASTER_PORT=29500")
    look = _openmpi("distcheck", "net", "--format", "json")
    ended = cluster.run("node1", *_mpirun(*carried, nodes=NODES[:2]), *look, env=_ROOT | {"PBS_JOBID": "7.server"})
    (report,) = reports(ended)
    assert (ended.code, report["verdict"], findings(report)) == (0, "pass", []), ended


@pytest.mark.parametrize(
    ("start", "words"),
    sampled(
        [
            (_mpirun(nodes=NODES[:2]), "# add to mpirun: -x MASTER_ADDR=node1 -x MASTER_PORT="),
            (_mpiexec(nodes=NODES[:2]), "# add to mpiexec: -genv MASTER_ADDR node1 -genv MASTER_PORT "),
        ],
        "openmpi",
        ids=["openmpi", "hydra"],
    ),
)
def test_a_bare_mpirun_is_one_warning_and_one_from_a_host_without_ranks_an_error(cluster, start, words):
    ended = cluster.run("node1", *start, "distcheck", *GATE, env=_ROOT, timeout=PATIENCE)
    (report,) = reports(ended)
    expected = (0, "warn", ["env-mpi-horovod-vars-only"])
    assert (ended.code, report["verdict"], findings(report, "error", "warning", "info")) == expected
    assert [(row["op"], row["ranks"], row["wrong"]) for row in report["bandwidth"]] == [("all_reduce", 4, 0)]
    (line,) = [c for c in finding(report, "env-mpi-horovod-vars-only")["fix"]["commands"] if words in c]
    assert re.fullmatch(r"2\d{4}", line.removeprefix(words)), "the port at which distcheck met"

    # The only trace of rank 0 is where mpirun runs: here it is on another host.
    ended = cluster.run("head", *start, "distcheck", "env", "--join-timeout=4", env=_ROOT, timeout=PATIENCE)
    assert (ended.code, "rank 0 is on node1" in ended.out, words in ended.out) == (30, True, True), ended


def test_variables_that_mpirun_does_not_carry_are_a_warning(cluster):
    carried = ("-x", "MASTER_ADDR", "-x", "MASTER_PORT")
    env, job = _ROOT | MASTER | {"NCCL_SOCKET_IFNAME": "eth0"}, _openmpi(*LOOKED_AT)
    ended = cluster.run("node1", *_mpirun(*carried, nodes=NODES[:2]), *job, env=env, timeout=PATIENCE)
    (report,) = reports(ended)
    assert (ended.code, report["verdict"], findings(report)) == (0, "warn", ["mpi-env-not-forwarded"])
    found = finding(report, "mpi-env-not-forwarded")
    assert (found["nodes"], found["ranks"]) == (["node2"], [2, 3])
    assert found["fix"]["commands"] == ["# add to mpirun: -x NCCL_SOCKET_IFNAME=eth0"]
    assert len(summed(ended)) == 4

    carried = (*carried, "-x", "NCCL_SOCKET_IFNAME")
    mended = cluster.run("node1", *_mpirun(*carried, nodes=NODES[:2]), *job, env=env, timeout=PATIENCE)
    assert_healthy([mended], blocks(2, 2), "openmpi")
