"""The report as JUnit XML: a suite for the job, and one for each named node.

A test case is a rule. An error is a failure, a warning is output, a required check that could not be made is an error,
an optional one is skipped, and so is a rule that did not run. A rule that ran without findings passes, in the job's
suite.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container
from typing import Literal, NamedTuple
from xml.etree import ElementTree as ET

from distcheck.facts.job import Job
from distcheck.report import Detail
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.sections import evidence_lines, where
from distcheck.rules import Rule
from distcheck.rules.diagnose import Diagnosis, left_out
from distcheck.rules.finding import Finding, NotChecked

_COUNTED = {
    "tests": "testcase",
    "failures": "testcase/failure",
    "errors": "testcase/error",
    "skipped": "testcase/skipped",
}
JOB = ""
"""The place of outcomes that name no node."""


class RuleResult(NamedTuple):
    """One outcome of a rule, as text."""

    result: Literal["failure", "error", "skipped", "system-out"]
    message: str
    text: str


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the XML; `options` has no effect."""
    del options
    report = document(job, diagnosis)
    root = ET.Element("testsuites", name="distcheck", time=f"{report.seconds:.3f}")
    totals: Counter[str] = Counter()
    for place, rules in _places(job, diagnosis).items():
        name = harmless(place) or "job"
        suite = ET.SubElement(root, "testsuite", name=name)
        if place == JOB:
            properties = ET.SubElement(suite, "properties")
            ET.SubElement(properties, "property", name="verdict", value=report.verdict)
            ET.SubElement(properties, "property", name="exit_code", value=str(report.exit_code))
        for rule, outcomes in rules.items():
            _result(ET.SubElement(suite, "testcase", classname=f"distcheck.{name}", name=harmless(rule)), outcomes)
        if place == JOB:
            ET.SubElement(suite, "system-out").text = report.headline
        for kind, path in _COUNTED.items():
            number = len(suite.findall(path))
            suite.set(kind, str(number))
            totals[kind] += number
    for kind in _COUNTED:
        root.set(kind, str(totals[kind]))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _places(job: Job, diagnosis: Diagnosis) -> dict[str, dict[str, list[RuleResult]]]:
    """Return the outcomes by place and rule; the job first, then the nodes by name."""
    from distcheck.rules import all_rules, rules_for

    places: defaultdict[str, defaultdict[str, list[RuleResult]]] = defaultdict(lambda: defaultdict(list))
    outcomes: tuple[Finding | NotChecked, ...] = (*diagnosis.findings, *diagnosis.not_checked)
    for outcome in outcomes:
        result = _found(outcome) if isinstance(outcome, Finding) else _unlooked(outcome)
        for place in outcome.nodes or (JOB,):
            places[place][outcome.rule].append(result)
    named = {rule for rules in places.values() for rule in rules}
    whole: dict[str, list[RuleResult]] = {**places.pop(JOB, {})}
    known = {rule.name for rule in rules_for(job)}
    for rule in all_rules():
        if rule.applies(job) and rule.name not in named:
            reason = _why_not_run(job, rule, known)
            whole[rule.name] = [RuleResult("skipped", reason, reason)] if reason else []
    return {JOB: whole, **dict(sorted(places.items()))}


def _why_not_run(job: Job, rule: Rule, known: Container[str]) -> str:
    """Return why a rule about which nothing is said did not run; empty if it ran."""
    if left_out(rule, job.asked.select, job.asked.ignore):
        return "left out by --select or --ignore"
    if rule.look == "gpu" and job.nodes and all(node.accelerator == "none" for node in job.nodes):
        return "no node has a GPU"
    return "" if rule.name in known else "no rank has a variable that it judges"


def _result(case: ET.Element, outcomes: list[RuleResult]) -> None:
    """Add one element for each kind of outcome; skipped only if there is no other outcome."""
    for result in ("failure", "error", "system-out", "skipped"):
        these = [one for one in outcomes if one.result == result]
        if not these or (result == "skipped" and len(case)):
            continue
        element = ET.SubElement(case, result)
        if result != "system-out":
            element.set("message", these[0].message)
        element.text = "\n\n".join(one.text for one in these)


def _found(finding: Finding) -> RuleResult:
    place = where(finding.ranks, finding.nodes)
    lines = [
        f"{finding.severity}: {harmless(finding.message)}" + (f" [{place}]" if place else ""),
        *(f"  {line}" for line in evidence_lines(finding.evidence, everything=False)),
        f"  fix: {harmless(finding.fix.text)}",
        *(f"      {harmless(command)}" for command in finding.fix.commands),
    ]
    decides = finding.severity == "error" and not finding.observed
    result: Literal["failure", "system-out"] = "failure" if decides else "system-out"
    return RuleResult(result, harmless(finding.message), "\n".join(lines))


def _unlooked(unlooked: NotChecked) -> RuleResult:
    place = where(unlooked.ranks, unlooked.nodes)
    reason = harmless(unlooked.reason)
    return RuleResult("error" if unlooked.required else "skipped", reason, f"{reason} [{place}]" if place else reason)
