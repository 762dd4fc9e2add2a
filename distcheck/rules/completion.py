"""From what a rule says to findings: its record, its docstring and the job fill in what a fault leaves out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.rules import Rule
from distcheck.rules.finding import Fault, Finding, NotChecked


def outcomes(rule: Rule, job: Job) -> Iterator[Finding | NotChecked]:
    """Judge a job by one rule."""
    judge = rule.judge

    def asked(subject: object) -> Fault | Missing | None:
        answer = judge(job, subject)
        return _fault(rule, answer) if answer else None

    for outcome in rule.of(job, asked) if rule.of else rule.judge(job):
        if isinstance(outcome, Fault):
            yield _finding(rule, job, outcome)
        else:
            yield msgspec.structs.replace(outcome, rule=rule.name)


def _fault(rule: Rule, answer: Fault | Missing | str) -> Fault | Missing:
    """Return what a rule says of a subject, with severity, scope and owner."""
    if isinstance(answer, Missing):
        return answer
    fault = Fault(answer) if isinstance(answer, str) else answer
    return msgspec.structs.replace(
        fault,
        severity=fault.severity or rule.severity,
        scope=fault.scope or rule.scope[0],
        owner=fault.owner or rule.owner,
    )


def _finding(rule: Rule, job: Job, fault: Fault) -> Finding:
    from distcheck.rules.docstring import docstring, filled, fix_in  # these are only needed for findings
    from distcheck.rules.job.launch_words import in_launch_words
    from distcheck.rules.job.same_ranks import on_same_ranks
    from distcheck.rules.job.scheduler import as_scheduled
    from distcheck.rules.job.vendor import as_vendor

    fix = filled(fault.fix or fix_in(docstring(rule.judge)), fault.values)
    return Finding(
        rule=rule.name,
        aliases=rule.aliases,
        severity=fault.severity or rule.severity,
        scope=fault.scope or rule.scope[0],
        owner=fault.owner or rule.owner,
        confirmed=fault.confirmed,
        ranks=fault.ranks,
        nodes=fault.nodes,
        gpus=fault.gpus,
        message=fault.message,
        evidence=fault.evidence,
        fix=on_same_ranks(job, as_scheduled(job, as_vendor(job, fault.nodes, in_launch_words(job, fix)))),
        docs=rule.page,
        excludes=fault.excludes,
    )
