"""Pods: late DNS names, sidecar proxies, containers that share a host, and environments that place no rank."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Attempt, PeerTrial, Resolution

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
ON_GPUS = {"gpus": 2, "looks": ("environment", "meeting", "gpu")}


@pytest.fixture
def pods(job_of, change):
    """A healthy job in pods."""
    return lambda nodes=2, per_node=1, **more: change.environment(job_of(nodes, per_node, **more), None, **POD)


@pytest.fixture
def said(judge):
    return lambda job: [(f.rule, f.severity, f.ranks) for f in judge(job).findings]


@pytest.fixture
def sidecar(judge):
    return lambda job: {f.rule: f for f in judge(job).findings}["k8s-istio-sidecar"]


def late(seconds):
    return Resolution(name="trainer-0.trainer", addresses=("10.0.0.1",), seconds=seconds, tries=4)


def test_a_healthy_job_in_pods_is_silent(pods, said):
    assert said(pods()) == []
    assert said(pods(2, 2, **ON_GPUS)) == []


@pytest.mark.parametrize(("seconds", "severity"), [(1.0, "info"), (8.0, "warning")])
def test_k8s_dns_not_ready_reports_how_late_the_name_resolved(pods, job_of, change, said, seconds, severity):
    assert said(change.process(pods(), 1, master_resolution=late(seconds))) == [("k8s-dns-not-ready", severity, (1,))]
    assert said(change.process(job_of(2, 1), 1, master_resolution=late(seconds))) == [], "outside of pods"


def test_k8s_istio_sidecar_is_an_info_where_all_connections_succeeded(pods, change, said):
    assert said(change.node(pods(), None, proxy_ports=(15001, 15006))) == [("k8s-istio-sidecar", "info", (0, 1))]


@pytest.mark.parametrize(
    ("port", "line"),
    [(15001, 'labels: {sidecar.istio.io/inject: "false"}'), (4143, "annotations: {linkerd.io/inject: disabled}")],
)
def test_the_pods_are_excluded_from_the_mesh_in_their_template(pods, change, sidecar, port, line):
    found = sidecar(change.node(pods(), None, proxy_ports=(port,)))
    assert found.fix.commands == (f"# in the pod template: metadata: {{{line}}}",)


def test_k8s_istio_sidecar_where_connections_open_without_an_answer(pods, change, sidecar):
    silent = Attempt(address="10.0.0.1", port=29500, door="master", outcome="silent")
    job = change.process(change.node(pods(), None, proxy_ports=(15001, 15006)), 1, attempts=(silent,))
    assert (sidecar(job).severity, sidecar(job).ranks) == ("error", (1,))
    assert "15001 and 15006" in sidecar(job).message


@pytest.mark.parametrize("outcome", ["foreign", "silent"])
def test_k8s_istio_sidecar_where_peers_were_answered_by_another_program_or_not_at_all(pods, change, sidecar, outcome):
    job = change.node(pods(looks=("environment", "meeting", "peers")), None, proxy_ports=(4143,))
    trials = [("process-0", "process-1", outcome), ("process-1", "process-0", "met")]
    peers = tuple(
        PeerTrial(source=s, target=t, address="10.0.0.1", port=40000, outcome=o, seconds=0.1) for s, t, o in trials
    )
    found = sidecar(change.job(job, peers=peers))
    assert (found.severity, found.ranks) == ("error", (0, 1))
    assert "Linkerd" in found.message


def test_k8s_pod_host_confusion_where_pods_of_one_machine_have_different_names(pods, change, said):
    found = said(change.node(pods(2, 2, **ON_GPUS), None, boot_id="boot"))
    assert found == [("k8s-pod-host-confusion", "info", (0, 1, 2, 3))]
    assert said(change.node(pods(), None, boot_id="boot")) == [], "without GPUs"


def test_k8s_pod_host_confusion_where_containers_with_one_name_have_separate_shm(pods, change, said):
    job = change.process(pods(1, 2, **ON_GPUS), 0, shm_device=70)
    assert said(change.process(job, 1, shm_device=71)) == [("k8s-pod-host-confusion", "info", (0, 1))]
    assert said(change.process(job, 1, shm_device=70)) == []


def test_ranks_with_their_own_variables_are_silent(pods, job_of, said):
    assert said(pods(per_node=2)) == said(job_of(nodes=2, launcher="distcheck")) == []
