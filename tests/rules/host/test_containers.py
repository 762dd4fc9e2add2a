"""Ranks of one host in separate namespaces, and virtual machines without a topology."""

from __future__ import annotations

import pytest

from distcheck.facts.host import Limits
from distcheck.facts.pci import Pci, PciPlace
from distcheck.facts.rank import Installed

FAMILY = "host.containers"
APART = Limits(namespaces={"ipc": "ipc:[2]", "pid": "pid:[2]"})


@pytest.mark.parametrize(
    ("nccl", "variables", "severity"),
    [
        ("2.18.3", {}, "warning"),
        ("2.27.5", {}, "info"),
        ("2.27.5", {"NCCL_CUMEM_ENABLE": "0"}, "warning"),
        ("", {}, "info"),
    ],
)
def test_host_ptrace_pidns_for_ranks_of_one_host(on_hosts, change, said, nccl, variables, severity):
    job = change.environment(on_hosts(2, 2, gpus=2), None, **variables)
    installed = Installed(python="3.11.7", prefix="/opt", torch=job.nodes[0].torch, nccl=nccl)
    job = change.process(job, None, installed=installed)
    assert said(job, FAMILY) == []
    found = said(change.process(job, 3, limits=APART), FAMILY)
    assert found == [("host-ptrace-pidns", severity, (2, 3), ("node2",))]


def test_other_nodes_have_their_own_namespaces_and_gloo_needs_none(on_hosts, change, said):
    job = on_hosts(2, 2, gpus=2)
    assert said(change.process(job, (2, 3), limits=APART), FAMILY) == []
    assert said(change.process(on_hosts(2, 2), 3, limits=APART), FAMILY) == []


def tree(*between, gpus=2, virtual=True):
    places = {f"000{n}:00:00.0": PciPlace((f"pci000{n}:00", *between, f"000{n}:00:00.0"), None) for n in range(gpus)}
    return Pci(gpus=places, nics=(), virtual=virtual)


@pytest.mark.parametrize(
    ("pci", "variables", "reported"),
    [
        (tree(), {}, True),
        (tree("0000:00:01.0"), {}, True),
        (tree("0000:00:01.0", "0000:01:00.0"), {}, False),
        (tree(virtual=False), {}, False),
        (tree(gpus=1), {}, False),
        (tree(), {"NCCL_TOPO_FILE": "/opt/microsoft/topo.xml"}, False),
    ],
    ids=["flat", "root ports", "a switch", "no hypervisor", "one GPU", "a topology file"],
)
def test_host_vm_topology_without_a_file(on_hosts, change, said, pci, variables, reported):
    job = change.environment(change.node(on_hosts(2, 2, gpus=2), 1, pci=pci), None, **variables)
    assert said(job, FAMILY) == ([("host-vm-topology", "info", (), ("node2",))] if reported else [])
