"""Inherited variables: torchrun's, PET_*, proxies."""

from __future__ import annotations

from distcheck.facts.network import Bind

OURS = (
    "environment.variables",
    "environment.leaks",
    "environment.ranks",
    "environment.master_addr",
    "environment.master_port",
)


def test_an_agent_store_without_an_agent_is_an_error_when_the_port_was_free(job_of, change, found):
    job = change.environment(job_of(nodes=2), None, TORCHELASTIC_USE_AGENT_STORE="True")
    findings, exit_code = found(job)
    assert (list(findings), exit_code) == (["env-torchelastic-leak"], 30)
    assert findings["env-torchelastic-leak"].ranks == (0, 1, 2, 3)


def test_an_agent_store_without_an_agent_among_the_ancestors_is_a_warning(job_of, change, found):
    job = change.environment(job_of(per_node=1), None, TORCHELASTIC_USE_AGENT_STORE="True")
    findings, exit_code = found(job)
    assert ([f.severity for f in findings.values()], exit_code) == (["warning"], 0)
    under = change.process(job, 0, ancestors=("python -m torch.distributed.run train.py",))
    assert found(under) == ({}, 0)


def test_an_agent_that_answers_is_no_leak(job_of, change, found):
    job = change.environment(job_of(), None, TORCHELASTIC_USE_AGENT_STORE="True")
    assert found(change.process(job, 0, bind=Bind(port=29500, outcome="agent"))) == ({}, 0)


def test_other_ranks_than_0_do_not_decide_about_the_store(job_of, change, found):
    assert found(change.environment(job_of(), 1, TORCHELASTIC_USE_AGENT_STORE="True")) == ({}, 0)


def test_inherited_pet_variables_are_a_warning(job_of, change, found):
    findings, exit_code = found(change.environment(job_of(), None, PET_NNODES="2", PET_RDZV_ENDPOINT="node1:1"))
    assert ([f.rule for f in findings.values()], exit_code) == (["env-pet-leak"], 0)
    assert findings["env-pet-leak"].evidence == {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "node1:1"}


def test_pet_variables_are_silent_in_a_pod_or_overridden(job_of, change, found):
    pod = change.environment(job_of(), None, PET_NNODES="2", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert found(pod) == ({}, 0)
    overridden = change.environment(job_of(launcher="torchrun"), None, PET_NNODES="2")
    assert found(overridden) == ({}, 0)


def test_a_proxy_is_an_info_unless_it_is_bypassed(job_of, change, found):
    proxied = change.environment(job_of(nodes=2), None, http_proxy="http://proxy:3128")
    findings, exit_code = found(proxied)
    assert ([(f.rule, f.severity) for f in findings.values()], exit_code) == ([("env-proxy-vars", "info")], 0)
    assert found(change.environment(proxied, None, no_proxy="localhost,node1")) == ({}, 0)
    assert found(change.environment(proxied, None, MASTER_ADDR="a.cluster.local", no_proxy=".local")) == ({}, 0)
    assert found(change.environment(proxied, None, MASTER_ADDR="10.0.0.1", no_proxy="10.0.0.0/8")) == ({}, 0)
