"""Rules for large jobs: limits of the nodes, and how far apart ranks start."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import NetworkFacts

LOOKS = ("environment", "meeting", "peers")
OURS = ("scale",)


def network(**fields):
    healthy = {"open_files": (1 << 20, 1 << 20), "listen_backlog": 4096, "connections_tracked": (100, 262_144)}
    return NetworkFacts(
        links=(), own_name=Missing(reason="-"), own_name_binds=Missing(reason="-"), **(healthy | fields)
    )


@pytest.fixture
def of(job_of, change):
    """Build a healthy job whose processes joined quickly and whose limits are high."""

    def of(nodes=4, per_node=1, **more):
        job = job_of(nodes, per_node, looks=LOOKS, **more)
        job = change.process(job, None, arrived_seconds=0.3)
        return change.node(job, None, network=network())

    return of


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 2), (4, 8), (65, 1), (65, 8)])
@pytest.mark.parametrize("launcher", ["by hand", "slurm"])
def test_a_healthy_job_is_silent(of, judge, shape, launcher):
    assert judge(of(*shape, launcher=launcher), "scale")[:2] == ((), ())


def test_missing_facts_are_silent(of, rules, change):
    nothing = network(
        open_files=(-1, -1), listen_backlog=Missing(reason="hidden"), connections_tracked=Missing(reason="no conntrack")
    )
    job = change.process(of(200, 8), None, arrived_seconds=None)
    assert rules(change.node(job, None, network=nothing)) == []
    assert rules(change.node(job, None, network=None)) == []


# -- net-open-files


@pytest.mark.parametrize(("soft", "severity", "code"), [(16, "error", 30), (64, "warning", 0)])
def test_a_low_soft_limit_is_reported_for_rank_0(of, change, only, soft, severity, code):
    job = change.node(of(4, 8), 0, network=network(open_files=(soft, 4096)))
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, finding.owner) == ("net-open-files", severity, "user")
    assert (finding.ranks, finding.nodes, exit_code) == ((0,), ("node1",), code)
    assert finding.message == (
        f"rank 0 (node1 pid 100) may open {soft} files; its store needs one for each of 32 ranks, expected at least 288"
    )
    assert finding.fix.commands == ("ulimit -n 65536",)
    assert finding.evidence == {"soft": soft, "hard": 4096, "world_size": 32}


def test_a_low_hard_limit_is_for_the_administrator(of, change, only):
    finding, _ = only(change.node(of(65, 16), 0, network=network(open_files=(1024, 1024))))
    assert (finding.rule, finding.ranks, finding.owner) == ("net-open-files", (0,), "admin")
    assert "expected at least 1296" in finding.message


@pytest.mark.parametrize("limits", [(288, 288), (1024, 4096), (-1, -1), (4096, -1)])
def test_limits_that_suffice_are_silent(of, change, rules, limits):
    assert rules(change.node(of(4, 8), None, network=network(open_files=limits))) == []


def test_with_an_unlimited_hard_limit_the_user_can_fix_it(of, change, only):
    finding, _ = only(change.node(of(2), 0, network=network(open_files=(64, -1))))
    assert finding.owner == "user"


def test_the_limits_of_other_nodes_than_rank_0s_do_not_matter(of, change, rules):
    assert rules(change.node(of(4, 8), (1, 2, 3), network=network(open_files=(64, 64), listen_backlog=1))) == []
    assert rules(change.keep(change.node(of(4), None, network=network(open_files=(9, 9))), 1, 2)) == []


# -- net-conntrack-full


def test_a_full_table_of_connections_names_its_node(of, change, only):
    finding, exit_code = only(change.node(of(4, 2), 2, network=network(connections_tracked=(64_000, 65_536))))
    assert (finding.rule, finding.severity, finding.scope) == ("net-conntrack-full", "warning", "node")
    assert (finding.ranks, finding.nodes, exit_code) == ((4, 5), ("node3",), 0)
    assert finding.message == "node3 tracks 64000 connections; its table holds at most 65536"
    assert finding.fix.commands == ("sudo sysctl -w net.netfilter.nf_conntrack_max=262144",)


@pytest.mark.parametrize("tracked", [(0, 0), (58_000, 65_536), (0, 65_536)])
def test_a_table_with_room_is_silent(of, change, rules, tracked):
    assert rules(change.node(of(), None, network=network(connections_tracked=tracked))) == []


# -- net-somaxconn-backlog


def test_a_backlog_smaller_than_a_large_world_is_info(of, change, only):
    finding, exit_code = only(change.node(of(65, 16), 0, network=network(listen_backlog=128)))
    assert (finding.rule, finding.severity, finding.scope) == ("net-somaxconn-backlog", "info", "node")
    assert (finding.ranks, finding.nodes, exit_code) == ((0,), ("node1",), 0)
    assert finding.message == (
        "node1 queues 128 connections (net.core.somaxconn), but 1040 ranks connect to rank 0 at once"
    )


@pytest.mark.parametrize(("shape", "backlog"), [((64, 16), 128), ((65, 16), 4096), ((65, 16), 1040), ((4, 8), 1)])
def test_a_sufficient_backlog_or_a_small_world_is_silent(of, change, rules, shape, backlog):
    assert rules(change.node(of(*shape), None, network=network(listen_backlog=backlog))) == []


# -- net-nccl-socket-port-scan


@pytest.fixture
def on_slurm(of, change):
    """Build an NCCL job on nodes with 64 CPUs, `given` of which belong to the job."""

    def on_slurm(given, nodes=2, gpus=2, **more):
        job = change.node(of(nodes, 2, launcher="slurm", gpus=gpus, **more), None, cpus=64)
        return change.environment(job, None, SLURM_CPUS_ON_NODE=str(given))

    return on_slurm


def test_ranks_on_shared_nodes_without_a_magic_number_are_info(on_slurm, change, only):
    finding, exit_code = only(on_slurm(16))
    assert (finding.rule, finding.severity, finding.ranks, exit_code) == (
        "net-nccl-socket-port-scan",
        "info",
        (0, 1, 2, 3),
        0,
    )
    assert finding.fix.commands == ("export NCCL_SOCKET_MAGIC=$SLURM_JOB_ID",)
    finding, _ = only(change.environment(on_slurm(16), (0, 1), NCCL_SOCKET_MAGIC="77"))
    assert (finding.ranks, finding.nodes) == ((2, 3), ("node2",))


def test_whole_nodes_or_a_magic_number_or_no_nccl_are_silent(on_slurm, of, change, rules):
    assert rules(on_slurm(64)) == []
    assert rules(on_slurm(128)) == []
    assert rules(change.environment(on_slurm(16), None, NCCL_SOCKET_MAGIC="77")) == []
    assert rules(change.nccl_file(on_slurm(16), None, "NCCL_SOCKET_MAGIC=77")) == []
    assert rules(on_slurm(16, backend="gloo")) == []
    assert rules(on_slurm(16, gpus=0)) == []
    assert rules(on_slurm(16, nodes=1)) == []
    assert rules(change.node(on_slurm(16), None, cpus=None)) == []
    assert rules(of(2, 2, gpus=2)) == []
