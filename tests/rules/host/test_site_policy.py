"""Rules about the site's policy, and what it expects of a node."""

from __future__ import annotations

import pytest
from made.policies import policy

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.infiniband import Hca, HcaPort, Infiniband
from distcheck.facts.storage import Space

OURS = ("host.policy", "host.expected", "host.probe")


@pytest.fixture
def site(job_of, change):
    """A job of `distcheck node` on nodes with four GPUs each, and with this policy."""

    def site(*sections, nodes=1, problem="", **asked):
        job = job_of(nodes, 1, looks=("environment", "meeting", "node", "gpu"), gpus=4)
        return change.asked(job, command="node", policy=policy(*sections, problem=problem), **asked)

    return site


def test_a_policy_that_cannot_be_used_is_one_warning_that_never_fails_a_run(site, change, judge):
    job = site(problem="/etc/distcheck/policy.toml:3: mod: unknown key; did you mean mode?")
    said = judge(job, *OURS)
    (found,) = said.findings
    assert (found.rule, found.severity, said.verdict.exit_code) == ("tool-policy-not-used", "warning", 0)
    assert found.message.endswith("did you mean mode?; nothing is enforced in this run")
    assert found.fix.commands == ("distcheck policy --check /etc/distcheck/policy.toml",)
    assert judge(change.asked(job, strict=True), *OURS).verdict.exit_code == 0


def test_a_rule_that_is_ignored_no_more_is_named_with_its_last_day(site, only, rules):
    job = site({"rule": {"gpu-xid": {"ignore": "vendor looks", "until": "2026-11-30"}}})
    found, code = only(job)
    assert (found.rule, code) == ("tool-policy-ignore-ended", 0)
    assert found.message == "gpu-xid was to be ignored until 2026-11-30 (vendor looks); it is only observed now"
    assert rules(site({"rule": {"gpu-xid": {"ignore": "vendor looks", "until": "2026-12-01"}}})) == []
    assert rules(site({"nodes": "node2", "rule": {"gpu-xid": {"ignore": "w", "until": "2026-11-30"}}})) == []


def test_nodes_with_different_policies_are_named(job_of, change, only, rules):
    job = job_of(3, 1)
    for n in range(3):
        job = change.node(job, n, policy="aa" * 32)
    assert rules(job) == []
    found, code = only(change.node(job, 1, policy=""))
    assert (found.rule, found.severity, code) == ("tool-policy-differs", "warning", 0)
    assert found.message == "the nodes have different policies: node1 and node3: policy aaaaaaaaaaaa; node2: no policy"


def adapters(*states):
    """Return adapters with one port each, in these states."""
    ports = (HcaPort(1, "InfiniBand", *state.split("/")) for state in states)
    return Infiniband(hcas=tuple(Hca(f"mlx5_{n}", (port,)) for n, port in enumerate(ports)))


UP, DOWN, WAITS = "ACTIVE/LinkUp", "DOWN/Polling", "INIT/LinkUp"
ADAPTERS = adapters(UP, UP)
IDLE = "ib-fewer-active-adapters-than-expected"


@pytest.mark.parametrize(
    ("expected", "fields", "rule", "words"),
    [
        ({"gpu-model": "*A100*"}, {}, "gpu-model-not-expected", "4 x NVIDIA H100; the site's policy expects *A100*"),
        ({"gpu-model": "NVIDIA H100*"}, {}, "", ""),
        (
            {"driver": ["550.*", "570.*"]},
            {},
            "gpu-driver-not-expected",
            "driver 580.95; the site's policy",
        ),
        ({"driver": ["570.*", "580.*"]}, {}, "", ""),
        ({"driver": "5*"}, {}, "", ""),
        ({"kernel": "4.18.*"}, {}, "host-kernel-not-expected", "the site's policy expects 4.18.*"),
        ({"kernel": "*"}, {}, "", ""),
        ({"adapters": 3}, {"infiniband": ADAPTERS}, "ib-fewer-adapters-than-expected", "2 RDMA adapters (mlx5_0 and"),
        ({"adapters": 2}, {"infiniband": ADAPTERS}, "", ""),
        (
            {"adapters": 2},
            {"infiniband": adapters(DOWN, DOWN)},
            IDLE,
            "2 of 2 RDMA adapters without an active port (mlx5_0",
        ),
        (
            {"adapters": 3},
            {"infiniband": adapters(UP, DOWN, UP)},
            IDLE,
            "(mlx5_1 DOWN/Polling); the site's policy expects 3",
        ),
        ({"adapters": 2}, {"infiniband": adapters(UP, DOWN, UP)}, "", ""),
        ({"adapters": 1}, {"infiniband": Infiniband()}, "ib-fewer-adapters-than-expected", "0 RDMA adapters; the"),
    ],
)
def test_a_node_that_is_not_as_expected_is_confirmed_bad(site, change, judge, expected, fields, rule, words):
    job = change.node(site({"expect": expected}), 0, **fields)
    said = judge(job, *OURS)
    assert [f.rule for f in said.findings] == [rule] * bool(rule)
    assert said.verdict.exit_code == (40 if rule else 0)
    assert all(words in f.message and f.nodes == ("node1",) for f in said.findings)


def test_a_port_that_a_subnet_manager_has_not_activated_drains_nobody(site, change, judge):
    job = change.node(site({"expect": {"adapters": 2}}), 0, infiniband=adapters(UP, WAITS))
    said = judge(job, *OURS)
    assert [(f.rule, f.confirmed) for f in said.findings] == [(IDLE, False)]
    assert said.verdict.exit_code == 20
    assert judge(change.node(job, 0, infiniband=adapters(WAITS, DOWN)), *OURS).verdict.exit_code == 40


def test_a_state_that_cannot_be_read_is_unknown(site, change, judge):
    job = change.node(site({"expect": {"adapters": 1}}), 0, infiniband=adapters("/"))
    assert (judge(job, *OURS).findings, judge(job, *OURS).verdict.exit_code) == ((), 20)


@pytest.mark.parametrize("expected", [{"gpu-model": "*"}, {"driver": "*"}, {"adapters": 1}])
def test_what_cannot_be_read_is_unknown_and_drains_nobody(site, change, judge, expected):
    lost = Missing(reason="no answer")
    said = judge(change.node(site({"expect": expected}), 0, gpus=lost, infiniband=lost), *OURS)
    assert (said.findings, said.verdict.exit_code) == ((), 20)


def test_a_driver_or_model_that_nvml_does_not_tell_is_unknown(site, change, judge):
    job = site({"expect": {"driver": "*"}})
    job = change.node(job, 0, gpus=Gpus(Missing(reason="NVML error 3"), "12.4", ()))
    assert judge(job, *OURS).verdict.exit_code == 20


def test_other_nodes_have_expectations_of_their_own(site, rules):
    sections = ({"expect": {"gpu-model": "*H100*"}}, {"nodes": "node2", "expect": {"gpu-model": "*A100*"}})
    assert rules(site(*sections)) == []
    assert rules(site(*sections, nodes=2)) == ["gpu-model-not-expected"]


@pytest.mark.parametrize(
    ("threshold", "free_mib", "rule"),
    [({}, 500, ""), ({"tmp-free-MiB": 1024}, 500, "host-disk-full"), ({"tmp-free-MiB": 10}, 50, "")],
)
def test_the_room_for_temporary_files_is_judged_by_the_policy(job_of, change, judge, threshold, free_mib, rule):
    job = job_of(1, 1, looks=("environment", "meeting", "collectives"))
    job = change.node(job, 0, tmp=Space(1 << 34, free_mib << 20, 1000, writable=True))
    job = change.asked(job, policy=policy({"threshold": threshold}))
    assert [f.rule for f in judge(job, "host.node").findings] == [rule] * bool(rule)
