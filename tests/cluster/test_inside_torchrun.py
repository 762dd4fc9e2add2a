"""distcheck as the script of torchrun and of torch.distributed.launch on real nodes, and the job right after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cluster.inside import GATE, JOB, findings, mapped, reports, summed
from real.agents import QUICK_TORCHRUN

if TYPE_CHECKING:
    from real.ended import Ended

_NODES = ("node1", "node2", "node3", "node4")
_AGENT = " ".join(QUICK_TORCHRUN)
_MASTER = ["--master-addr", "node1", "--master-port", "29555"]
_C10D = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29556", "--rdzv-id", "job-7"]


class Launched(NamedTuple):
    """How the agents of one job ended, by node."""

    agents: dict[str, Ended]

    @property
    def codes(self) -> dict[str, int]:
        return {node: ended.code for node, ended in self.agents.items()}

    @property
    def reports(self) -> list[dict[str, Any]]:
        return reports(*self.agents.values())

    @property
    def report(self) -> dict[str, Any]:
        (report,) = self.reports
        return report


@pytest.fixture
def launched(cluster):
    """Start an agent on each of some nodes, and wait for all of them."""

    def launch(*command: str, nodes: tuple[str, ...] = _NODES) -> Launched:
        running = {node: cluster.start(node, *command, env={"OMP_NUM_THREADS": "1"}) for node in nodes}
        return Launched({node: r.wait(150) for node, r in running.items()})

    return launch


def assert_healthy(launched: Launched, world: int = 8) -> None:
    assert set(launched.codes.values()) == {0}, launched
    report = launched.report
    assert findings(report) == [], report["findings"]
    assert (report["verdict"], report["world"]["ranks"], report["missing_ranks"]) == ("pass", world, [])
    by_node = [row["node"] for row in sorted(report["ranks"], key=lambda row: row["rank"])]
    assert len(report["ranks"]) == world
    assert [row["local_rank"] for row in sorted(report["ranks"], key=lambda row: row["rank"])] == [0, 1] * (world // 2)
    assert all(first == second for first, second in zip(by_node[::2], by_node[1::2], strict=True))
    assert sorted(set(by_node)) == sorted(launched.agents)
    total = world * (world + 1) // 2
    assert summed(*launched.agents.values()) == [f"rank {rank} of {world} summed up {total}" for rank in range(world)]


# tests/cluster/test_soak.py gates with torchrun's static rendezvous and its c10d, and tests/end_to_end/test_torchrun.py
# has torch.distributed.launch and --standalone.


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["4", "1:4"])
def test_c10d_torchrun_on_four_nodes_is_healthy_and_the_job_runs_after_it(launched, nnodes):
    # An elastic rendezvous waits for this long after the first node, so that all four belong to the first world.
    more = ["--rdzv-conf", "last_call_timeout=20"] if ":" in nnodes else []
    agent = [*QUICK_TORCHRUN, "--nnodes", nnodes, *_C10D, *more, "--nproc-per-node", "2"]
    done = launched(*agent, "--no-python", "distcheck", *GATE, "--", sys.executable, JOB)
    assert_healthy(done)
    assert findings(done.report, "info") == []


@pytest.mark.without_slurm
def test_agents_of_which_one_has_the_variables_of_an_salloc_shell_are_healthy(cluster):
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    agent = (*QUICK_TORCHRUN, "--nnodes", "2", *_MASTER, "--nproc-per-node", "1", "--no-python")
    look = ("distcheck", "net", "--format", "json")
    running = [
        cluster.start(node, *agent, "--node-rank", str(number), *look, env={} if number else job)
        for number, node in enumerate(_NODES[:2])
    ]
    done = Launched({node: r.wait(150) for node, r in zip(_NODES, running, strict=False)})
    assert (set(done.codes.values()), done.report["verdict"], findings(done.report)) == ({0}, "pass", []), done


@pytest.mark.slow
def test_under_srun_a_torchrun_per_node_is_healthy(cluster):
    agent = " ".join([_AGENT, "--nnodes 4", *_MASTER, "--node-rank $SLURM_NODEID --nproc-per-node 2 --no-python"])
    command = f"{agent} distcheck {' '.join(GATE)} -- {sys.executable} {JOB}"
    ended = cluster.run(
        "node1", "srun", "--nodes=4", "--ntasks-per-node=1", "bash", "-c", command,
        env={"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}, timeout=150,
    )  # fmt: skip
    done = Launched({"srun": ended})
    assert done.codes == {"srun": 0}, ended
    assert findings(done.report, "error", "warning", "info") == []
    assert len(summed(ended)) == 8


def test_a_torchrun_without_nnodes_on_each_node_of_a_step_is_a_warning(cluster):
    ended = cluster.run(
        "node1", "srun", "--nodes=2", "--ntasks-per-node=1",
        *QUICK_TORCHRUN, "--nproc-per-node", "1", "--no-python", "distcheck", "env", "--format", "json", timeout=150,
    )  # fmt: skip
    reports = Launched({"srun": ended}).reports
    assert ended.code == 0
    assert [findings(report) for report in reports] == [["torchrun-nnodes-mismatch"]] * 2, ended


def _step_of_agents(cluster, script):
    """Run a script of bash on each node of a step, which starts its agent; return the one report and the exit code."""
    look = "--nproc-per-node 1 --no-python distcheck env --format json"
    ended = cluster.run(
        "node1", "srun", "--nodes=4", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "bash", "-c", f"{script} {look}",
        env={"OMP_NUM_THREADS": "1", "SKEW": "-400"}, timeout=150,
    )  # fmt: skip
    (report,) = Launched({"srun": ended}).reports
    return report


def test_agents_that_wait_for_different_numbers_of_nodes_are_the_jobs_error_and_the_one_left_out_is_named(cluster):
    nnodes = "$((SLURM_NODEID ? 4 : 3))"
    report = _step_of_agents(cluster, f"{_AGENT} --nnodes {nnodes} --node-rank $SLURM_NODEID {' '.join(_MASTER)}")
    assert (report["exit_code"], findings(report)) == (30, ["torchrun-nnodes-mismatch"])
    assert report["findings"][0]["evidence"]["in no world"] == "node4"


@pytest.mark.slow
def test_a_node_dropped_by_its_clock_is_named_and_the_run_does_not_pass(cluster):
    skewed = f"{sys.executable} {Path(__file__).parent / 'skewed_agent.py'}"
    agent = f"[ $SLURM_NODEID = 2 ] && agent='{skewed}' || agent='{_AGENT}'; $agent --nnodes 4"
    report = _step_of_agents(cluster, f"{agent} {' '.join(_C10D)}")
    met = {row["node"] for row in report["ranks"]}
    assert (report["exit_code"], findings(report), len(met)) == (20, ["torchrun-nnodes-mismatch"], 3)
    assert report["findings"][0]["nodes"] == sorted(set(_NODES) - met)


def test_a_torchrun_for_every_task_is_named(cluster):
    ended = cluster.run(
        "node1", "srun", "--nodes=1", "--ntasks-per-node=2", "--kill-on-bad-exit=0",
        *QUICK_TORCHRUN, "--nproc-per-node", "2", "--no-python", "distcheck", "env", "--format", "json", timeout=150,
    )  # fmt: skip
    reports = Launched({"srun": ended}).reports
    assert [findings(report) for report in reports] == [["torchrun-per-task-under-srun"]] * len(reports), ended
    assert reports


def test_an_empty_rendezvous_id_is_named_where_elastic_nodes_start_alone(launched):
    agent = [*QUICK_TORCHRUN, "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29557"]
    agent += ["--rdzv-id=", "--rdzv-conf", "last_call_timeout=1", "--nproc-per-node", "1"]
    # node1 keeps the rendezvous until a slower node2 has found it
    look = 'distcheck env --format json; code=$?; sleep 6; exit "$code"'
    done = launched(*agent, "--no-python", "bash", "-c", look, nodes=("node1", "node2"))
    assert [findings(report) for report in done.reports] == [["torchrun-rdzv-id-mismatch"]] * 2, done


def test_the_same_node_rank_on_all_nodes_is_found_before_torchrun_starts(cluster):
    ended = cluster.run(
        "node1", "srun", "--nodes=4", "--ntasks-per-node=1",
        *mapped("SLURM_", "PROCID NTASKS LOCALID", "distcheck", "env", "--format", "json"),
        env={"NODE_RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
    )  # fmt: skip
    assert (ended.code, ended.rules) == (0, ["torchrun-node-rank-duplicated"]), ended
    (found,) = (f for f in ended.report["findings"] if f["rule"] == "torchrun-node-rank-duplicated")
    assert found["ranks"] == [0, 1, 2, 3]


def test_a_host_name_unknown_to_the_others_is_named(cluster, launched):
    # The agents meet by address; the ranks are sent to node1's own name, which the others no longer resolve.
    address = f"{cluster.networks[0]}.11"
    for node in ("node2",):
        hosts = cluster.read(node, "/etc/hosts")
        cluster.write(node, "/etc/hosts", "\n".join(line for line in hosts.splitlines() if "node1" not in line) + "\n")
    agent = [*QUICK_TORCHRUN, "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29558"]
    agent += ["--rdzv-id", "job-8", "--nproc-per-node", "1"]
    done = launched(
        *agent, "--no-python", "distcheck", "env", "--format", "json", "--join-timeout", "10", nodes=("node1", "node2")
    )
    named = {f["rule"]: f for report in done.reports for f in report["findings"] if f["severity"] == "error"}
    assert "torchrun-fqdn-unreachable" in named, done
    assert "env-master-addr-unresolvable" not in named
    assert named["torchrun-fqdn-unreachable"]["nodes"] == ["node2"]
