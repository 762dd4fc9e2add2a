"""Rules about the site's policy itself."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.wording import brief

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("environment", severity="warning", scope="tool", also=("node",), always=True, owner="admin")
def tool_policy_not_used(job: Job) -> Iterator[Outcome]:
    """The site's policy cannot be read, or is not valid, and is not used.

    Then thresholds, ignored rules and expected hardware of the site do not count, and distcheck cannot know whether the
    site enforces: it only observes, so that no node is drained for a typing error.

    Found when the files are read: at the start of each run, within 3 s. It never fails a run, even with ``--strict``.

    Fix: Correct the file, or restore its last version.

        distcheck policy --check {file|/etc/distcheck}
    """
    policy = job.asked.policy
    if policy is not None and policy.problem:
        mode = "" if job.asked.mode else "; nothing is enforced in this run"
        yield Fault(
            brief(f"the site's policy is not used: {policy.problem}", 250) + mode,
            values={"file": tuple(map(quote, policy.files[:1]))},
        )


@rule("environment", severity="warning", scope="tool", also=("node",), always=True, owner="admin")
def tool_policy_ignore_ended(job: Job) -> Iterator[Outcome]:
    """The time for which the site's policy ignores a rule is over.

    What was to be repaired by then may not be. The rule is judged again, but decides nothing until somebody does.

    Found by the day of the run and ``until`` in the policy.

    Fix: Remove the lines about the rule, so that it decides again, or give a later day.

        distcheck policy
        distcheck explain {rule|RULE}
    """
    policy = job.asked.policy
    if policy is None or policy.problem:
        return
    ended = {
        name: setting
        for node in dict.fromkeys(("", *(node.name for node in job.nodes)))
        for name, setting in job.asked.site(node).rule.items()
        if setting.ended(policy.day)
    }
    for name, setting in sorted(ended.items()):
        yield Fault(
            brief(f"{name} was to be ignored until {setting.until} ({setting.ignore}); it is only observed now", 250),
            values={"rule": (quote(name),)},
        )
