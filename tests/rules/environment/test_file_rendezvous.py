"""The rendezvous file."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import NetworkFacts, RendezvousFile

LOOKS = ("environment", "meeting", "peers")
UNKNOWN = Missing(reason="made up")


@pytest.fixture
def of(job_of, change):
    """Build a job whose nodes see a rendezvous file; `odd` is what node2 sees."""

    def of(nodes=4, odd=None, *, machines=True, **file):
        job = job_of(nodes, 2, looks=LOOKS)
        whole = {"path": "/shared/meet", "bytes": None, "file_system": "nfs4", "locks": True}
        for n in range(nodes):
            seen = RendezvousFile(**(whole | file | (odd or {} if n == 1 else {})))
            network = NetworkFacts(links=(), own_name=UNKNOWN, own_name_binds=UNKNOWN, rendezvous_file=seen)
            job = change.node(job, n, network=network, boot_id=f"boot{n}" if machines else "boot")
        return job

    return of


@pytest.fixture
def rules(judge):
    return lambda job: [(f.rule, f.severity, f.nodes) for f in judge(job, "environment.file_rendezvous").findings]


def test_a_new_file_that_all_nodes_share_is_silent(of, rules):
    assert rules(of()) == rules(of(bytes=0)) == rules(of(1, file_system="ext4")) == []
    assert rules(of(file_system="ext4", machines=False)) == [], "containers of one machine may share a folder"


def test_a_file_on_a_node_local_disk_is_an_error_for_several_nodes(of, rules):
    everybody = ("node1", "node2", "node3", "node4")
    assert rules(of(file_system="xfs")) == [("net-file-rendezvous-nfs", "error", everybody)]
    assert rules(of(odd={"file_system": "tmpfs"})) == [("net-file-rendezvous-nfs", "error", ("node2",))]


def test_data_of_an_earlier_run_and_a_mount_without_locks_are_warnings(of, rules, judge):
    assert rules(of(odd={"bytes": 512})) == [("net-file-rendezvous-nfs", "warning", ("node2",))]
    assert rules(of(odd={"locks": False})) == [("net-file-rendezvous-nfs", "warning", ("node2",))]
    (finding,) = judge(of(odd={"bytes": 512}), "environment.file_rendezvous").findings
    assert (finding.ranks, finding.fix.commands) == ((2, 3), ("rm /shared/meet",))
    assert "/shared/meet on node2 already has data from an earlier run" in finding.message
