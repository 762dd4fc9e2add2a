"""Rules for large jobs: limits of the nodes, and jobs that share them."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import NetworkFacts

LOOKS = ("environment", "meeting", "peers")
OURS = ("network.scale",)


def network(**fields):
    healthy = {"open_files": (1 << 20, 1 << 20), "listen_backlog": 4096, "connections_tracked": (100, 262_144)}
    return NetworkFacts(
        links=(), own_name=Missing(reason="-"), own_name_binds=Missing(reason="-"), **(healthy | fields)
    )


@pytest.fixture
def of(job_of, change):
    """Build a healthy job whose limits are high; `given` of its nodes' 64 CPUs belong to it."""

    def of(nodes=4, per_node=1, given=None, **more):
        job = change.node(job_of(nodes, per_node, looks=LOOKS, **more), None, network=network(), cpus=64)
        return change.environment(job, None, SLURM_CPUS_ON_NODE=str(given)) if given else job

    return of


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 2), (4, 8), (65, 1), (65, 8)])
@pytest.mark.parametrize("launcher", ["by hand", "slurm"])
def test_a_healthy_job_is_silent(of, silent, shape, launcher):
    assert silent(of(*shape, launcher=launcher))


FILES = "may open {} files; its store needs one for each of {} ranks, expected at least {}"
HARD = "echo '* hard nofile 1048576' | sudo tee /etc/security/limits.d/jobs.conf"


@pytest.mark.parametrize(
    ("shape", "where", "facts", "record", "ranks", "words", "commands"),
    [
        ((4, 8), 0, {"open_files": (16, 4096)}, "net-open-files error rank user", (0,), FILES.format(16, 32, 288),
         "ulimit -n 65536"),
        ((4, 8), 0, {"open_files": (64, 4096)}, "net-open-files warning rank user", (0,), FILES.format(64, 32, 288),
         "ulimit -n 65536"),
        ((65, 16), 0, {"open_files": (1024, 1024)}, "net-open-files error rank admin", (0,),
         FILES.format(1024, 1040, 1296), HARD),
        ((2, 1), 0, {"open_files": (64, -1)}, "net-open-files warning rank user", (0,), "", "ulimit -n 65536"),
        ((4, 2), 2, {"connections_tracked": (64_000, 65_536)}, "net-conntrack-full warning node admin", (4, 5),
         "node3 tracks 64000 connections; its table holds at most 65536",
         "sudo sysctl -w net.netfilter.nf_conntrack_max=262144"),
        ((65, 16), 0, {"listen_backlog": 128}, "net-somaxconn-backlog info node admin", (0,),
         "node1 queues 128 connections (net.core.somaxconn), but 1040 ranks connect to rank 0 at once",
         "sudo sysctl -w net.core.somaxconn=65535"),
    ],
)  # fmt: skip
def test_a_limit_that_is_too_low_is_reported(of, change, only, shape, where, facts, record, ranks, words, commands):
    finding, exit_code = only(change.node(of(*shape), where, network=network(**facts)))
    assert f"{finding.rule} {finding.severity} {finding.scope} {finding.owner}" == record
    assert (finding.ranks, finding.nodes) == (ranks, (f"node{where + 1}",))
    assert exit_code == (30 if finding.severity == "error" else 0)
    assert words in finding.message
    assert finding.fix.commands == (commands,)


UNKNOWN = {
    "open_files": (-1, -1),
    "listen_backlog": Missing(reason="hidden"),
    "connections_tracked": Missing(reason="no conntrack"),
}


@pytest.mark.parametrize(
    ("shape", "where", "facts"),
    [
        *[((4, 8), None, {"open_files": limits}) for limits in ((288, 288), (1024, 4096), (-1, -1), (4096, -1))],
        ((4, 8), (1, 2, 3), {"open_files": (64, 64), "listen_backlog": 1}),  # rank 0 is elsewhere
        *[((4, 1), None, {"connections_tracked": tracked}) for tracked in ((0, 0), (58_000, 65_536), (0, 65_536))],
        *[(shape, 0, {"listen_backlog": backlog})
          for shape, backlog in (((64, 16), 128), ((65, 16), 4096), ((65, 16), 1040), ((4, 8), 1))],
        ((200, 8), None, UNKNOWN),
    ],
)  # fmt: skip
def test_limits_that_suffice_or_are_unknown_are_silent(of, change, rules, shape, where, facts):
    assert rules(change.node(of(*shape), where, network=network(**facts))) == []


def test_without_rank_0_or_facts_nothing_is_judged(of, change, rules):
    assert rules(change.keep(change.node(of(4), None, network=network(open_files=(9, 9))), 1, 2)) == []
    assert rules(change.node(of(200, 8), None, network=None)) == []


SHARED = {"nodes": 2, "per_node": 2, "gpus": 2, "launcher": "slurm", "given": 16}


def test_ranks_on_shared_nodes_without_a_magic_number_are_info(of, change, only):
    finding, exit_code = only(of(**SHARED))
    assert (finding.rule, finding.severity, exit_code) == ("net-nccl-socket-port-scan", "info", 0)
    assert (finding.ranks, finding.fix.commands) == ((0, 1, 2, 3), ("export NCCL_SOCKET_MAGIC=$SLURM_JOB_ID",))
    finding, _ = only(change.environment(of(**SHARED), (0, 1), NCCL_SOCKET_MAGIC="77"))
    assert (finding.ranks, finding.nodes) == ((2, 3), ("node2",))


def test_whole_nodes_or_a_magic_number_or_no_nccl_are_silent(of, change, rules):
    for other in ({"given": 64}, {"given": 128}, {"given": None}, {"backend": "gloo"}, {"gpus": 0}, {"nodes": 1}):
        assert rules(of(**SHARED | other)) == []
    shared = of(**SHARED)
    assert rules(change.environment(shared, None, NCCL_SOCKET_MAGIC="77")) == []
    assert rules(change.nccl_file(shared, None, "NCCL_SOCKET_MAGIC=77")) == []
    assert rules(change.node(shared, None, cpus=None)) == []
