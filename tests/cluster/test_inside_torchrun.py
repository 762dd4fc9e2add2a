"""distcheck as the script of torchrun and of torch.distributed.launch on real nodes, and the job right after it."""

from __future__ import annotations

import pytest
from cluster.inside import findings, reports
from real.agents import QUICK_TORCHRUN

_MASTER = ["--master-addr", "node1", "--master-port", "29555"]


# tests/cluster/test_soak.py gates with torchrun's static rendezvous and its c10d, and tests/end_to_end/test_torchrun.py
# has torch.distributed.launch and --standalone.


@pytest.mark.without_slurm
def test_agents_of_which_one_has_the_variables_of_an_salloc_shell_are_healthy(cluster):
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    agent = (*QUICK_TORCHRUN, "--nnodes", "2", *_MASTER, "--nproc-per-node", "1", "--no-python")
    look = ("distcheck", "net", "--format", "json")
    running = [
        cluster.start(node, *agent, "--node-rank", str(number), *look, env={} if number else job)
        for number, node in enumerate(("node1", "node2"))
    ]
    ended = [agent.wait(150) for agent in running]
    (report,) = reports(*ended)
    assert ({e.code for e in ended}, report["verdict"], findings(report)) == ({0}, "pass", []), ended


def test_agents_that_wait_for_different_numbers_of_nodes_are_the_jobs_error_and_the_one_left_out_is_named(cluster):
    agent = f"{' '.join((*QUICK_TORCHRUN, *_MASTER))} --nnodes $((SLURM_NODEID ? 4 : 3)) --node-rank $SLURM_NODEID"
    agent += " --nproc-per-node 1 --no-python distcheck env --format json"
    step = ("srun", "--nodes=4", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "bash", "-c", agent)
    (report,) = reports(cluster.run("node1", *step, env={"OMP_NUM_THREADS": "1"}, timeout=150))
    assert (report["exit_code"], findings(report)) == (30, ["torchrun-nnodes-mismatch"])
    assert "node4 of the Slurm step is not in it" in report["findings"][0]["message"]


def test_a_host_name_unknown_to_the_others_is_named(cluster):
    # The agents meet by address; the ranks are sent to node1's own name, which the others no longer resolve.
    address = f"{cluster.networks[0]}.11"
    hosts = cluster.read("node2", "/etc/hosts")
    cluster.write("node2", "/etc/hosts", "\n".join(line for line in hosts.splitlines() if "node1" not in line) + "\n")
    agent = [*QUICK_TORCHRUN, "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29558"]
    agent += ["--rdzv-id", "job-8", "--nproc-per-node", "1"]
    agent += ["--no-python", "distcheck", "env", "--format", "json", "--join-timeout", "10"]
    running = [cluster.start(node, *agent, env={"OMP_NUM_THREADS": "1"}) for node in ("node1", "node2")]
    ended = [agent.wait(150) for agent in running]
    named = {f["rule"]: f for report in reports(*ended) for f in report["findings"] if f["severity"] == "error"}
    assert "torchrun-fqdn-unreachable" in named, ended
    assert "env-master-addr-unresolvable" not in named
    assert named["torchrun-fqdn-unreachable"]["nodes"] == ["node2"]
