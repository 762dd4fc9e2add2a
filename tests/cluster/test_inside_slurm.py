"""distcheck as the tasks of an srun on real nodes, and what it finds wrong with such a step."""

from __future__ import annotations

import re
import sys

import pytest
from cluster import batch
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
    filtered,
    finding,
    findings,
    mapped,
    placed,
    reports,
)
from cluster.reaching import blamed, rename
from forms.sampled import sampled
from real.waiting import until

from distcheck.selection.nodelist import deal, expand, tasks_per_node


def tasks(*command):
    return mapped("SLURM_", "PROCID NTASKS LOCALID", *command)


def srun(cluster, *words, by="srun", **environment):
    """Run a step from node1, or an allocation."""
    return cluster.run("node1", by, *words, env=environment, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("mpi", "address", "program"),
    sampled({"none": ("none", "node1", PLAIN_JOB), "pmix": ("pmix", "node1-data", JOB)}, "none"),
)
def test_each_task_a_rank_is_healthy_and_the_job_runs_after_it(cluster, mpi, address, program):
    job = tasks("distcheck", *GATE, "--", sys.executable, program)
    shape = (f"--mpi={mpi}", "--nodes=2", "--ntasks-per-node=2")
    ended = srun(cluster, *shape, *job, MASTER_ADDR=address, MASTER_PORT="29500")
    report = assert_healthy([ended], blocks(2, 2), "slurm")
    assert findings(report, "info") == []


def test_one_task_on_each_node_with_nproc_is_healthy_and_torchrun_runs_after_it(cluster):
    agent = [f"{sys.prefix}/bin/torchrun", "--nnodes=2", "--nproc-per-node=2", "--master-addr=node1"]
    command = f"exec distcheck {' '.join(GATE)} --nproc 2 -- {' '.join(agent)} --node-rank=$SLURM_NODEID {JOB}"
    ended = srun(cluster, "--nodes=2", "--ntasks-per-node=1", "bash", "-c", command, OMP_NUM_THREADS="1")
    report = assert_healthy([ended], blocks(2, 2), "distcheck")
    assert findings(report, "info") == []


def test_a_bare_srun_runs_to_the_end_with_one_warning(cluster):
    """As the README has it: nothing is mapped, and what env:// would miss is said once."""
    script = "import os; print(*(os.environ.get(n) for n in ('RANK', 'MASTER_ADDR')))"
    job = ("distcheck", *GATE, "--", sys.executable, "-c", script)
    ended = srun(cluster, "--nodes=2", "--ntasks-per-node=2", *job)
    (report,) = reports(ended)
    assert (ended.code, report["verdict"]) == (0, "warn")
    assert findings(report, "error", "warning", "info") == ["env-rank-unset"]
    assert placed(report) == blocks(2, 2)
    assert [(row["op"], row["ranks"], row["wrong"]) for row in report["bandwidth"]] == [("all_reduce", 4, 0)]
    found = finding(report, "env-rank-unset")
    assert "if the script has defaults for them, 4 jobs of one rank run" in found["message"]
    assert found["evidence"]["unset"] == ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    assert found["evidence"]["distcheck met at"].startswith("node1:2")
    assert ended.out.splitlines() == ["None None"] * 4, "the environment is untouched"

    assert srun(cluster, "--nodes=2", "--ntasks-per-node=1", "distcheck", "net", "--strict").code == 10


def test_the_words_to_add_are_right(cluster):
    shape = ("--nodelist=node1,node2", "--ntasks-per-node=2")
    (report,) = reports(srun(cluster, *shape, "distcheck", "env", "--format=json"))
    numbers, step, *master = finding(report, "env-rank-unset")["fix"]["commands"]
    assert step == f"srun bash -c '{numbers} && exec python train.py'"
    step = step.replace("python train.py", '"$@"').replace("bash -c", "--ntasks-per-node=2 bash -c")
    script = "; ".join([*master, f'{step} bash "$@"'])
    ended = srun(cluster, *shape, "bash", "-c", script, "bash", *LOOKED_AT, by="salloc")
    assert_healthy([ended], blocks(2, 2), "slurm")


# -- where tasks are


def test_tasks_are_where_their_variables_say(cluster):
    shown = "$SLURM_PROCID $SLURMD_NODENAME $SLURM_STEP_NODELIST $SLURM_STEP_TASKS_PER_NODE"
    shown += " $SLURM_DISTRIBUTION, $SLURM_DIST_PLANESIZE"
    asked = (
        "-N4 -n8", "-N4 --ntasks-per-node=2 -m cyclic", "-N4 -n8 -m plane=2", "-N3 -n5", "-N3 -n5 -m cyclic",
        "-N3 -n7 -m plane=2", "-N2 -n5 -w node2,node4 -m block:cyclic", "-N4 -n3",
    )  # fmt: skip
    for options in asked:
        # A file for each task: srun may tear their lines and mix them.
        step = ("srun", "--output=/shared/where.%t", *options.split())
        ended = cluster.run("node1", *step, "bash", "-c", f'echo "{shown}"')
        assert ended.code == 0, ended
        files = sorted(cluster.shared.glob("where.*"), key=lambda file: int(file.suffix[1:]))
        lines = [file.read_text().split() for file in files]
        for file in files:
            file.unlink()
        nodes, tasks, distribution, plane = (*lines[0][2:], "")[:4]
        order = deal(tasks_per_node(tasks), distribution.rstrip(","), int(plane) if plane else None)
        assert [expand(nodes)[place] for place in order] == [words[1] for words in lines], options


def test_nodes_whose_tasks_never_start_are_named(cluster):
    step = ("--nodes=4", "--ntasks-per-node=2", "--distribution=cyclic", "--kill-on-bad-exit=0")
    look = "case $SLURMD_NODENAME in node[23]) ;; *) exec distcheck env --join-timeout 4 --format json; esac"
    ended = srun(cluster, *step, *tasks("bash", "-c", look), **MASTER)
    (report,) = reports(ended)
    assert (ended.code, findings(report)) == (20, ["env-rank-missing"])
    found = finding(report, "env-rank-missing")
    assert (found["ranks"], found["nodes"]) == ([1, 2, 5, 6], ["node2", "node3"])
    assert "ranks 1-2,5-6 (node2 and node3) of 8" in found["message"]
    missing = {row["rank"]: row["node"] for row in report["ranks"] if row["status"] == "missing"}
    assert missing == {1: "node2", 2: "node3", 5: "node2", 6: "node3"}
    shown = cluster.run("node1", "sh", "-c", found["fix"]["commands"][0])
    assert re.findall(r"\bNodeName=(\S+)", shown.out) == ["node2", "node3"]


def test_another_job_on_the_port_is_named_and_not_to_be_killed(cluster):
    first = "test $SLURM_PROCID = 1 && exec sleep 300; exec distcheck env --join-timeout 250 --timeout 300"
    holder = cluster.start("node1", "srun", "--nodelist=node1", "--ntasks=2", *tasks("bash", "-c", first), env=MASTER)
    until(lambda: ":29500" in cluster.netns("node1", "ss", "-Hltn").out, 60)
    step = ("srun", "--nodelist=node1,node2", "--ntasks-per-node=1", *tasks("distcheck", "env", "--format", "json"))
    ended = cluster.run("node1", *step, env=MASTER, timeout=PATIENCE)
    jobs = sorted(cluster.run("node1", "squeue", "--noheader", "--format=%i").out.split(), key=int)
    assert cluster.run("node1", "scancel", *jobs).code == 0
    holder.wait(PATIENCE)
    (report,) = reports(ended)
    assert (ended.code, findings(report)) == (30, ["net-port-in-use"])
    found = finding(report, "net-port-in-use")
    assert (found["ranks"], found["nodes"]) == ([0], ["node1"])
    assert f"in Slurm job {jobs[0]};" in f"{found['message']};"
    shown, port = found["fix"]["commands"]
    assert (shown, port) == (f"scontrol show job {jobs[0]}", "export MASTER_PORT=29501")
    again = cluster.run("node1", "sh", "-c", f'{port}; exec "$@"', "sh", *step, env=MASTER, timeout=PATIENCE)
    assert (again.code, again.rules) == (0, []), again


# -- slurm-no-srun


def test_a_script_that_takes_the_batch_shell_for_a_task_is_the_one_error(cluster):
    script = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0 MASTER_ADDR=$(hostname)\n"
    script += "MASTER_PORT=29500 exec distcheck env --join-timeout 4 --format json\n"
    ended = batch.run(cluster, script, timeout=PATIENCE)
    (report,) = reports(ended)
    assert (ended.code, report["verdict"], findings(report)) == (30, "job", ["slurm-no-srun"])
    assert finding(report, "slurm-no-srun")["ranks"] == [0]


# -- ranks that do not find rank 0


def _wrong(cluster, *look, where="node1", options=("--ntasks-per-node=2",), **env):
    """Run a look as every task of a step, which Slurm lets end by itself, and return it with its one report."""
    # A file for each task: srun tears the tasks' long lines and mixes them.
    step = ("srun", "--nodes=4", "--kill-on-bad-exit=0", "--output=/shared/told.%t", *options)
    ended = cluster.run(where, *step, *tasks(*look, "--format", "json"), env=MASTER | env, timeout=PATIENCE)
    files = sorted(cluster.shared.glob("told.*"))
    said = [ended._replace(out=file.read_text(), err="") for file in files]
    for file in files:
        file.unlink()
    told = set(re.findall(r"srun: error: (node\d): tasks? \S+ Exited with exit code (\d+)", ended.err))
    return ended, reports(*said), told


def test_rank_0_on_another_node_than_master_addr_is_one_report_with_one_cause(cluster):
    cluster.write("node1", "/shared/order", "node3\nnode1\nnode2\nnode4\n")
    arbitrary = ("--ntasks=4", "--distribution=arbitrary")
    ended, (report,), told = _wrong(cluster, "distcheck", "net", options=arbitrary, SLURM_HOSTFILE="/shared/order")
    assert (ended.code, report["verdict"], report["missing_ranks"]) == (30, "job", [])
    assert told == {(node, "30") for node in NODES}
    assert findings(report) == ["env-master-addr-not-rank0-host"]
    found = finding(report, "env-master-addr-not-rank0-host")
    assert (found["ranks"], found["nodes"], found["fix"]["commands"]) == ([0], ["node3"], ["export MASTER_ADDR=node3"])
    assert report["seconds"] < 19  # one stands in for rank 0 after half of --join-timeout, which is 20 s

    there = {"SLURM_HOSTFILE": "/shared/order", "MASTER_ADDR": "node3"}
    ended, (report,), _ = _wrong(cluster, "distcheck", "net", options=arbitrary, **there)
    assert (ended.code, report["verdict"], findings(report)) == (0, "pass", [])


def test_a_name_that_resolves_differently_on_one_node_is_reported_with_both_addresses(cluster):
    rename(cluster, "node3", "node1", f"{cluster.networks[0]}.14")
    ended, (report,), told = _wrong(cluster, "distcheck", "net", where="head")
    assert (ended.code, report["verdict"], report["missing_ranks"]) == (30, "job", [])
    assert told == {(node, "30") for node in NODES}
    assert blamed(report) == {"net-dns-differs": ([4, 5], ["node3"])}
    found = finding(report, "net-dns-differs")
    assert "ranks 4-5 (node3): node1 resolves to 10.77.0.14; rank 0 is at 10.77.0.11 (node1)" in found["message"]
    assert found["fix"]["commands"] == [
        "ssh node3 getent ahosts node1",
        "ssh node1 getent ahosts node1",
        "export MASTER_ADDR=10.77.0.11",
    ]


def test_the_ranks_of_a_node_that_cannot_reach_rank_0_give_one_report(cluster):
    rename(cluster, "node3", "node1", f"{cluster.networks[0]}.14")
    side_doors = f"ip saddr {cluster.networks[0]}.13 tcp dport {{ 20000-29499, 29501-31999 }} drop"
    filtered(cluster, ("node1", "node2", "node4"), side_doors)
    ended, told_by, _ = _wrong(cluster, "distcheck", "net", "--join-timeout", "6")
    assert len(told_by) == 2, (ended, [blamed(report) for report in told_by])
    lost, rest = sorted(told_by, key=lambda report: sum(row["status"] != "missing" for row in report["ranks"]))
    assert ended.code == 20
    assert blamed(rest) == {"env-rank-missing": ([4, 5], ["node3"])}
    assert blamed(lost) == {"net-master-refused": ([4, 5], ["node3"])}
    found = finding(lost, "net-master-refused")
    assert "ranks 4-5 (node3): connection refused at node1 (10.77.0.14:29500)" in found["message"]
    assert found["fix"]["commands"] == ["ssh node3 getent ahosts node1", "ssh node1 getent ahosts node1"]
