"""Whether a gate searches for a bad node after the collectives."""

import pytest
import real_job
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.rules.diagnose import judge
from distcheck.run import leader


@pytest.fixture
def judged(monkeypatch):
    """Return a list that grows by the rules of each judgement; None stands for all rules."""
    found = []

    def noted(job, rules=None):
        found.append(rules if rules is None else {rule.name for rule in rules})
        return judge(job, rules)

    monkeypatch.setattr(leader, "judge", noted)
    return found


@pytest.fixture(scope="module")
def healthy():
    return real_job.healthy(4)


def test_a_healthy_job_is_not_searched_and_not_judged_by_all_rules(healthy, judged):
    assert not leader.worth_a_search(healthy)
    assert None not in judged
    assert {"collective-wrong-result", "perf-below-min-busbw", "net-nic-down-or-slow"} <= judged[0]


def slow(job):
    """The figures are below what the user requires."""
    asked = replace(job.asked, min_busbw_GBps=400.0)
    return replace(job, asked=asked)


def test_slow_figures_are_worth_a_search(healthy, judged):
    assert leader.worth_a_search(slow(healthy))
    assert judged[-1] is None


def test_a_known_cause_outside_the_nodes_is_not_searched_for(healthy):
    assert not leader.worth_a_search(slow(real_job.faulty(healthy, "another MASTER_PORT", 3)))


def test_an_impossible_threshold_is_no_reason_to_search(healthy):
    asked = replace(healthy.asked, min_busbw_GBps=1e6)
    assert not leader.worth_a_search(replace(healthy, asked=asked))


def test_one_node_and_missing_figures_are_not_searched(healthy, judged):
    assert not leader.worth_a_search(slow(real_job.healthy(1)))
    assert not leader.worth_a_search(replace(slow(healthy), collectives=Missing("not run")))
    assert not judged


def test_rules_that_the_user_left_out_start_no_search(healthy):
    job = slow(healthy)
    assert not leader.worth_a_search(replace(job, asked=replace(job.asked, ignore=("perf-below-min-busbw",))))
