"""Inherited variables: torchrun's, PET_*, proxies."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Bind

OURS = (
    "environment.variables",
    "environment.leaks",
    "environment.ranks",
    "environment.master_addr",
    "environment.master_port",
)


STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
PET = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "node1:1"}
PROXY = {"http_proxy": "http://proxy:3128"}
LEAK, OPTIONS, PROXIED = "env-torchelastic-leak", "env-pet-leak", "env-proxy-vars"


@pytest.mark.parametrize(
    ("job", "where", "variables", "rule", "severity"),
    [
        ({"nodes": 2}, None, STORE, LEAK, "error"),
        ({"per_node": 1}, None, STORE, LEAK, "warning"),
        ({}, 1, STORE, "", ""),  # rank 0 decides about the store
        ({}, None, PET, OPTIONS, "warning"),
        ({}, None, {"PET_NNODES": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "", ""),
        ({"launcher": "torchrun"}, None, {"PET_NNODES": "2"}, "", ""),  # which its command line overrides
        ({"nodes": 2}, None, PROXY, PROXIED, "info"),
        ({"nodes": 2}, None, PROXY | {"no_proxy": "localhost,node1"}, "", ""),
        ({"nodes": 2}, None, PROXY | {"MASTER_ADDR": "a.cluster.local", "no_proxy": ".local"}, "", ""),
        ({"nodes": 2}, None, PROXY | {"MASTER_ADDR": "10.0.0.1", "no_proxy": "10.0.0.0/8"}, "", ""),
    ],
)
def test_an_inherited_variable_is_a_finding_where_it_has_an_effect(
    job_of, change, found, job, where, variables, rule, severity
):
    healthy = job_of(**job)
    findings, exit_code = found(change.environment(healthy, where, **variables))
    ranks = tuple(range(len(healthy.ranks)))
    assert [(f.rule, f.severity, f.ranks) for f in findings.values()] == ([(rule, severity, ranks)] if rule else [])
    assert exit_code == (30 if severity == "error" else 0)
    assert rule != OPTIONS or findings[OPTIONS].evidence == PET


def test_an_agent_that_answers_or_is_among_the_ancestors_is_no_leak(job_of, change, found):
    job = change.environment(job_of(), None, **STORE)
    assert found(change.process(job, 0, bind=Bind(port=29500, outcome="agent"))) == ({}, 0)
    alone = change.environment(job_of(per_node=1), None, **STORE)
    assert found(change.process(alone, 0, ancestors=("python -m torch.distributed.run train.py",))) == ({}, 0)
