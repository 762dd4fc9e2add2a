"""Whether a gate runs the collectives, and whether it searches for a bad node after them."""

import pytest
from made import real_job
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.rules import rules_for
from distcheck.rules.diagnose import judge
from distcheck.rules.finding import NotChecked
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


def before_the_collectives(job):
    """What the leader knows before them."""
    looks = tuple(look for look in job.asked.looks if look != "collectives")
    ranks = tuple(replace(rank, run=None) for rank in job.ranks)
    return replace(job, asked=replace(job.asked, looks=looks), collectives=None, ranks=ranks)


def test_nothing_stops_the_collectives_of_a_healthy_job_and_what_can_only_warn_is_not_asked(healthy, judged):
    assert leader.reason_to_stop(before_the_collectives(healthy)) == ""
    (asked,) = judged
    assert "gpu-ecc-uncorrected" in asked
    assert "gpu-pcie-replay" not in asked


@pytest.mark.parametrize("fault", real_job.FAULTS)
def test_the_collectives_are_stopped_by_the_errors_that_all_rules_find(healthy, fault):
    job = before_the_collectives(real_job.faulty(healthy, fault, 3))
    errors = dict.fromkeys(f.rule for f in judge(job).findings if f.severity == "error")
    assert leader.reason_to_stop(job) == (f"not run because of {', '.join(errors)}" if errors else "")


def test_a_check_that_could_only_warn_and_was_not_made_stops_nothing(healthy, monkeypatch):
    job = before_the_collectives(healthy)

    def unread(_job):
        yield NotChecked(reason="the driver hangs")

    def unable(name):
        return lambda job: tuple(
            rule._replace(judge=unread, of=None) if rule.name == name else rule for rule in rules_for(job)
        )

    monkeypatch.setattr(leader, "rules_for", unable("gpu-pcie-replay"))
    assert leader.reason_to_stop(job) == ""
    monkeypatch.setattr(leader, "rules_for", unable("gpu-ecc-uncorrected"))
    assert leader.reason_to_stop(job) == "not run because gpu-ecc-uncorrected could not be checked"
